"""The monitoring as parts: Prometheus, Grafana, exporters, logs; and what Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kit.model import Host
from kit.plan.images import pinned
from kit.plan.types import MountPoint
from kit.plan.work import Plan, manager_of
from kit.retention import KeptLogs
from kit.values import show_size
from kit.workload.ports import Service
from kit.workload.privileges import NOBODY
from kit.workload.settings import Config, HealthCheck, Net, Port, Restart, Symbol, Variable, Word
from kit.workload.types import Kind, Part, Role, Workload

FOLDER = "monitoring"
"""The folder of the files of the monitoring in the tree."""
PROMETHEUS_PORT = 9090
GRAFANA_PORT = 3000
NODE_PORT, DCGM_PORT, ENGINE_PORT = 9100, 9400, 9323
"""The exporters' usual ports (Prometheus' wiki of default ports), Docker's documented example."""
COLLECTOR_CONTROL = "--control=/tmp/syslog-ng.ctl"
COLLECTOR, KEEPER = "syslog-ng.conf", "keep-logs.sh"
"""The files of the log collector: its configuration, and the program that deletes old lines."""
DASHBOARDS = ("cluster", "job", "host", "serving")
LOC = ("monitoring",)


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint that Prometheus scrapes: `address:port`, and its labels."""

    address: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """A scrape job: its targets, or a DNS `name` whose addresses are scraped at `port`.

    `own_labels`: labels of the scraped samples win over those of the target.
    """

    name: str
    targets: tuple[Target, ...] = ()
    dns: str = ""
    port: int = 0
    own_labels: bool = False


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The monitoring of a plan; Prometheus and Grafana run on `host`.

    `dcgm_exporter` is None if no host has a GPU. `log_collector` is None if the inventory has no
    `logs`, which are its limits.
    """

    host: Host
    prometheus: Part
    grafana: Part
    node_exporter: Part
    dcgm_exporter: Part | None
    log_collector: Part | None
    logs: KeptLogs | None
    scrapes: tuple[Scrape, ...]
    alertmanager: str


def monitoring(
    plan: Plan, scrapes: Iterable[Scrape], prometheus: str, *, host_network: bool = False
) -> Monitoring | None:
    """Make the parts of the monitoring, or None if the inventory has none.

    `scrapes` are those of jobs and servers, `prometheus` the address at which Grafana reaches it.
    `host_network`: both use the network of their host, and Prometheus only its loopback.
    """
    settings = plan.monitoring
    if settings is None:
        return None
    host = home(plan)
    gpus = tuple(each for each in plan.hosts if each.gpus)
    return Monitoring(
        host=host,
        prometheus=_prometheus(plan, host, host_network=host_network),
        grafana=_grafana(plan, host, prometheus, host_network=host_network),
        node_exporter=_node_exporter(plan),
        dcgm_exporter=_dcgm_exporter(plan, gpus) if gpus else None,
        log_collector=_log_collector(plan, settings.logs) if settings.logs else None,
        logs=settings.logs,
        scrapes=(*scrapes, *host_scrapes(plan)),
        alertmanager=settings.alertmanager or "",
    )


def home(plan: Plan) -> Host:
    """Return the host of Prometheus and Grafana."""
    named = plan.monitoring.host if plan.monitoring else None
    storing = (host for host in plan.hosts if "storage" in host.roles)
    default = next(storing, manager_of(plan.hosts))
    return next((host for host in plan.hosts if host.name == named), default)


def host_scrapes(plan: Plan) -> Iterator[Scrape]:
    """Yield the scrape jobs of the exporters and of Docker's engines, by the hosts' addresses."""
    gpus = [host for host in plan.hosts if host.gpus]
    for name, hosts, port in (
        ("node", plan.hosts, NODE_PORT),
        ("dcgm", gpus, DCGM_PORT),
        ("docker", plan.hosts, ENGINE_PORT),
    ):
        if hosts:
            yield Scrape(name, tuple(at(host, port) for host in hosts))


def at(host: Host, port: int, **labels: str) -> Target:
    """Return the target at a port of a host."""
    address = f"[{host.address}]" if ":" in host.address else host.address
    return Target(f"{address}:{port}", (("host", host.name), *labels.items()))


def job_scrapes(workloads: Iterable[Workload]) -> tuple[Scrape, ...]:
    """Return the scrape job of the jobs, at the addresses of their hosts, if any has metrics."""
    targets = tuple(
        at(host, port)
        for each in workloads
        if (port := metrics_port(each))
        for part in each.working
        for host in part.first_hosts
    )
    return (Scrape("train", targets, own_labels=True),) if targets else ()


def server_scrapes(workloads: Iterable[Workload]) -> Iterator[Scrape]:
    """Yield the scrape job of the servers, at the ports that their hosts publish."""
    targets = tuple(
        at(host, port.number, server=each.name)
        for each in workloads
        if each.kind is Kind.SERVER and each.document  # Other servers have figures of their own.
        for part in each.working
        for host in part.hosts
        for port in part.ports
    )
    if targets:
        yield Scrape("serve", targets)


def metrics_port(workload: Workload) -> int | None:
    """Return the port of a job's metrics, or None if it has none."""
    ports = [port for part in workload.working for port in part.ports]
    return ports[0].number if workload.kind is Kind.JOB and ports else None


def platform_parts(services: Monitoring | None) -> tuple[Part, ...]:
    """Return all parts, those on every host last."""
    if services is None:
        return ()
    everywhere = (services.node_exporter, services.dcgm_exporter, services.log_collector)
    parts = (services.prometheus, services.grafana, *everywhere)
    return tuple(part for part in parts if part is not None)


def engine_services(plan: Plan) -> Iterator[Service]:
    """Yield the metrics of Docker's engines, which `kit host prepare` switches on."""
    for host in plan.hosts if plan.monitoring is not None else ():
        port = Port(ENGINE_PORT, LOC, public=True)
        yield Service("the metrics of Docker", port, host, host.address)


def _part(role: Role, hosts: Sequence[Host], image: str, **more: object) -> Part:
    return Part(
        role=role,
        name=role,
        hosts=tuple(hosts),
        placements=(),
        replicas=len(hosts),
        image=image,
        restart=Restart(delay=5),
        **{"launch": (), "environment": (_NO_GPU,), **more},  # type: ignore[arg-type]
    )


_NO_GPU = Variable("NVIDIA_VISIBLE_DEVICES", Word("void"))


def _prometheus(plan: Plan, host: Host, *, host_network: bool) -> Part:
    assert plan.monitoring is not None
    # It has no passwords.
    own = (f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}",) if host_network else ()
    files = {"prometheus": "prometheus.yml", "rules": "rules.yml"}
    return _part(
        Role.PROMETHEUS,
        [host],
        pinned(plan.monitoring.prometheus, plan.lock),
        arguments=(
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            f"--storage.tsdb.retention.time={plan.monitoring.retention}",
            *own,
        ),
        mounts=(MountPoint("volume", "prometheus", "/prometheus", read_only=False),),
        configs=tuple(
            Config(key, f"{FOLDER}/{file}", f"/etc/prometheus/{file}")
            for key, file in files.items()
        ),
        user=NOBODY,
        unprivileged=True,
        read_only=True,
        about=(
            f"It has no password: it listens only on the loopback of {host.name}."
            if host_network
            else "It has no password: no host publishes its port.",
        ),
    )


def _grafana(plan: Plan, host: Host, prometheus: str, *, host_network: bool) -> Part:
    assert plan.monitoring is not None
    settings = plan.monitoring
    provisioning = "/etc/grafana/provisioning"
    boards = (
        Config(f"board-{name}", f"{FOLDER}/dashboards/{name}.json", f"/dashboards/{name}.json")
        for name in DASHBOARDS
    )
    return _part(
        Role.GRAFANA,
        [host],
        pinned(settings.grafana, plan.lock),
        environment=(
            Variable("GF_SECURITY_ADMIN_PASSWORD__FILE", f"/run/secrets/{settings.password.name}"),
            Variable("GF_AUTH_ANONYMOUS_ENABLED", "false"),
            Variable("GF_USERS_ALLOW_SIGN_UP", "false"),
            Variable("GF_ANALYTICS_REPORTING_ENABLED", "false"),
            Variable("GF_ANALYTICS_CHECK_FOR_UPDATES", "false"),
            Variable("GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES", "false"),
            Variable("GF_PLUGINS_PREINSTALL_DISABLED", "true", "Grafana downloads nothing."),
            Variable("PROMETHEUS_URL", prometheus, "For the provisioned data source."),
            *([Variable("GF_SERVER_HTTP_PORT", str(settings.port))] if host_network else []),
            _NO_GPU,
        ),
        mounts=(MountPoint("volume", "grafana", "/var/lib/grafana", read_only=False),),
        ports=(Port(settings.port, (*LOC, "port"), public=True, inside=GRAFANA_PORT),),
        configs=(
            Config("datasource", f"{FOLDER}/datasource.yml", f"{provisioning}/datasources/kit.yml"),
            Config("provider", f"{FOLDER}/provider.yml", f"{provisioning}/dashboards/kit.yml"),
            *boards,
        ),
        secrets=(settings.password,),
        unprivileged=True,
        read_only=True,
        about=(
            "The page for people. The password of its user admin is a secret; nobody sees "
            "anything without one.",
        ),
    )


def _node_exporter(plan: Plan) -> Part:
    assert plan.monitoring is not None
    return _part(
        Role.NODE_EXPORTER,
        plan.hosts,
        pinned(plan.monitoring.node_exporter, plan.lock),
        arguments=("--path.rootfs=/host", f"--web.listen-address=:{NODE_PORT}"),
        mounts=(MountPoint("bind", "/", "/host", read_only=True, propagation="rslave"),),
        ports=(Port(NODE_PORT, LOC, public=True),),
        user=NOBODY,
        unprivileged=True,
        read_only=True,
        network=Net.HOST,
        everywhere=True,
        host_processes=True,
        about=(
            "Processors, memory, disks and links: only the host's own network shows its links.",
        ),
    )


def _dcgm_exporter(plan: Plan, hosts: Sequence[Host]) -> Part:
    assert plan.monitoring is not None
    file = "dcgm-counters.csv"
    return _part(
        Role.DCGM_EXPORTER,
        hosts,
        pinned(plan.monitoring.dcgm_exporter, plan.lock),
        arguments=("-f", f"/etc/kit/{file}"),
        environment=(
            Variable("NVIDIA_VISIBLE_DEVICES", Symbol.GPUS, "It watches all, and uses none."),
            Variable("NVIDIA_DRIVER_CAPABILITIES", Word("utility")),
        ),
        ports=(Port(DCGM_PORT, LOC, public=True),),
        configs=(Config("dcgm-counters", f"{FOLDER}/{file}", f"/etc/kit/{file}"),),
        unprivileged=True,
        network=Net.HOST,
        everywhere=True,
        all_gpus=True,
        about=("The GPUs of the host. It reserves none: jobs keep theirs.",),
        why={"user": "Profiling fields alone would need SYS_ADMIN."},
    )


def _log_collector(plan: Plan, logs: KeptLogs) -> Part:
    """Return syslog-ng, which copies the lines of Docker's files to a volume of each host.

    The image's own entrypoint takes no arguments.
    """
    assert plan.monitoring is not None
    return _part(
        Role.LOG_COLLECTOR,
        plan.hosts,
        pinned(plan.monitoring.log_collector, plan.lock),
        launch=("/usr/sbin/syslog-ng", "--foreground"),
        arguments=(
            "--no-caps",
            "--persist-file=/logs/.positions",
            "--pidfile=/tmp/syslog-ng.pid",
            COLLECTOR_CONTROL,
        ),
        mounts=(
            MountPoint("bind", "/var/lib/docker/containers", "/containers", read_only=True),
            MountPoint("volume", "logs", "/logs", read_only=False),
        ),
        configs=(
            Config("syslog-ng", f"{FOLDER}/{COLLECTOR}", f"/etc/syslog-ng/{COLLECTOR}"),
            Config("keep-logs", f"{FOLDER}/{KEEPER}", f"/etc/kit/{KEEPER}"),
        ),
        health=HealthCheck(("/usr/sbin/syslog-ng-ctl", "healthcheck", COLLECTOR_CONTROL)),
        unprivileged=True,
        read_only=True,
        network=Net.ALONE,
        everywhere=True,
        about=(
            f"Keeps what the containers of the host have written for {logs.days} days, also of "
            f"removed ones, at most {show_size(logs.size)}:",
            "/logs/<container>/<day>.log in its volume.",
        ),
        why={"user": "Docker's files belong to root."},
    )
