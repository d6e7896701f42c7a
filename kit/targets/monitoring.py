"""The files of the monitoring, the same for every target. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.targets.lowered import Output
from kit.workload.monitoring import DASHBOARDS, FOLDER, Scrape


def monitoring_outputs(scrapes: Sequence[Scrape], alertmanager: str) -> Iterator[Output]:
    """Yield Prometheus' configuration and rules, and Grafana's data source and dashboards."""
    values = {"scrapes": scrapes, "alertmanager": alertmanager}
    yield Output(f"{FOLDER}/prometheus.yml", f"{FOLDER}/prometheus.yml.j2", values)
    others = ("rules.yml", "datasource.yml", "provider.yml", "dcgm-counters.csv")
    for name in (*others, *(f"dashboards/{board}.json" for board in DASHBOARDS)):
        yield Output(f"{FOLDER}/{name}", f"{FOLDER}/{name}.j2", {})
