"""The inventory's section `monitoring`: Prometheus, Grafana, the exporters and their settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, cast

from pydantic import BeforeValidator, Field, Tag, WithJsonSchema

from kit.config.fields import (
    SIZE,
    AlertmanagerAddress,
    Image,
    Label,
    SecretPath,
    Section,
    tagged,
    text_field,
    validator_of,
)
from kit.errors import INVENTORY, Fault
from kit.model import Host, Monitoring, Secret
from kit.retention import KeptLogs
from kit.values import WrongValueError, show_size, size
from trainer.contract.words import nearest, shown

PASSWORD = "GRAFANA_PASSWORD"
"""The secret with the password of Grafana's user admin."""
PROMETHEUS = "prom/prometheus:v3.5.0"
GRAFANA = "grafana/grafana:12.1.1"
NODE_EXPORTER = "prom/node-exporter:v1.9.1"
DCGM_EXPORTER = "nvcr.io/nvidia/k8s/dcgm-exporter:4.4.2-4.7.0-distroless"
LOG_COLLECTOR = "balabit/syslog-ng:4.8.1"
DEFAULT = 10 * 2**30
"""Bytes of lines that a host keeps: 30 days of 4 kB a second. Its images are much larger."""
LEAST = 100 * 2**20


def _retention(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{0,4}[hdwy]", value):
        return value
    raise WrongValueError(f"{shown(value)} is not a time to keep metrics", "write for example 30d")


Retention = Annotated[
    str,
    BeforeValidator(validator_of(_retention)),
    WithJsonSchema({"type": "string", "pattern": "^[1-9][0-9]*[hdwy]$", "examples": ["30d"]}),
]


def _days(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{0,3}d", value):
        return int(value[:-1])
    raise WrongValueError(f"{shown(value)} is not a number of days", "write for example 30d")


Days = Annotated[
    int,
    BeforeValidator(validator_of(_days)),
    WithJsonSchema({"type": "string", "pattern": "^[1-9][0-9]{0,3}d$", "examples": ["30d"]}),
]


def _kept_size(value: object) -> int:
    known = 0 if type(value) is int and value == 0 else size(value)
    if known < LEAST:
        raise WrongValueError(
            f"{shown(value)} is too small, because Docker itself keeps 30 MB of each container",
            f"write at least {show_size(LEAST)}, for example {show_size(DEFAULT)}",
        )
    return known


class LogsSection(Section):
    """The log lines that each host keeps, also of removed containers."""

    keep: Days = Field(description="Days for which a host keeps lines", examples=["30d"])
    size: Annotated[int, *text_field(_kept_size, SIZE, "10GiB", "Size with a binary unit")] = Field(
        DEFAULT,
        description="Largest size of the lines on each host: above it, the host deletes the oldest "
        "day first. 10GiB are 30 days of 4 kB a second",
    )


def _kind(value: object) -> str | None:
    if isinstance(value, str):
        return "<days>"
    return "<keep>" if isinstance(value, dict) else None


LogsKey = Annotated[
    Annotated[Days, Tag("<days>")] | Annotated[LogsSection, Tag("<keep>")],
    tagged(_kind, "is not a number of days", "write `logs: 30d`, or `{keep: 30d, size: 10GiB}`"),
]


class MonitoringImagesSection(Section):
    """The images of the monitoring; without internet access, name copies in your registry."""

    prometheus: Image = Field(PROMETHEUS)
    grafana: Image = Field(GRAFANA)
    node_exporter: Image = Field(NODE_EXPORTER)
    dcgm_exporter: Image = Field(DCGM_EXPORTER)
    log_collector: Image = Field(LOG_COLLECTOR)


class MonitoringSection(Section):
    """Prometheus with rules and alerts, Grafana with dashboards, and exporters on every host."""

    retention: Retention = Field(
        "30d", description="How long Prometheus keeps metrics: hours, days, weeks or years"
    )
    host: Label | None = Field(
        None,
        description="The host of Prometheus and Grafana; default: the first host with the role "
        "`storage`, else the first manager",
        examples=["pc1"],
    )
    port: int = Field(3000, ge=1, le=65535, description="Grafana's port on this host")
    password: SecretPath | None = Field(
        None,
        description=f"A file with the password of Grafana's user admin, on the machine that runs "
        f"kit; default: the variable {PASSWORD}",
        examples=["~/.grafana-password"],
    )
    alertmanager: AlertmanagerAddress | None = Field(
        None, description="Where Prometheus sends alerts", examples=["alerts.lab:9093"]
    )
    logs: LogsKey = Field(
        default=cast(LogsKey, None),  # A union with None cannot have tags.
        description="How long each host keeps what its containers have written, also after they "
        "are removed, and how much of it; default: only until then",
        examples=["30d", {"keep": "30d", "size": "10GiB"}],
    )
    images: MonitoringImagesSection = Field(
        MonitoringImagesSection(), examples=[{"grafana": "registry.lab:5000/grafana:12.1.1"}]
    )


def to_monitoring(section: MonitoringSection | None) -> Monitoring | None:
    """Convert the validated section to a value."""
    if section is None:
        return None
    images = section.images
    return Monitoring(
        retention=section.retention,
        host=section.host,
        port=section.port,
        password=Secret(PASSWORD, section.password),
        alertmanager=section.alertmanager,
        prometheus=images.prometheus,
        grafana=images.grafana,
        node_exporter=images.node_exporter,
        dcgm_exporter=images.dcgm_exporter,
        log_collector=images.log_collector,
        logs=_to_logs(section.logs),
    )


def _to_logs(section: int | LogsSection | None) -> KeptLogs | None:
    if section is None:
        return None
    if isinstance(section, LogsSection):
        return KeptLogs(section.keep, section.size)
    return KeptLogs(section, DEFAULT)


def monitoring_faults(section: MonitoringSection | None, hosts: Sequence[Host]) -> Iterable[Fault]:
    """Check the section against the hosts."""
    names = [host.name for host in hosts]
    if section is None:
        return
    if section.host is not None and section.host not in names:
        what = f"{section.host} is not in the inventory"
        yield Fault(INVENTORY, ("monitoring", "host"), what, nearest(section.host, names))
