"""Write Grafana's dashboards as templates: `python -m docs.generate.dashboards`.

Grafana's Foundation SDK types them. It is needed only here: the templates are committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

FOLDER = Path(__file__).parents[2] / "templates" / "monitoring" / "dashboards"
SOURCE = DataSourceRef(type_val="prometheus", uid="prometheus")
COLUMNS = 24
"""The width of Grafana's grid."""

RATE, PER_SECOND = units.PercentUnit, "ops"
LINKS = 'device!~"lo|veth.*|docker.*|br-.*"'


@dataclass(frozen=True)
class Panel:
    """A panel: its unit, and its queries with their legends. `number`: only the newest value."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    number: bool = False
    description: str = ""


@dataclass(frozen=True)
class Board:
    """A dashboard. `variables` are label names with the metric that has their values."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str], ...] = ()


def line(title: str, unit: str, *queries: tuple[str, str], description: str = "") -> Panel:
    """Return a panel with a curve for each series."""
    return Panel(title, unit, queries, description=description)


def number(title: str, unit: str, query: str, legend: str = "") -> Panel:
    """Return a panel with the newest value."""
    return Panel(title, unit, ((query, legend),), number=True)


RANK = "{{host}} rank {{rank}}"
CLUSTER = Board(
    "cluster",
    "Cluster",
    (
        number("Hosts that answer", units.Short, 'sum(up{job="node"})'),
        number("GPUs", units.Short, "count(DCGM_FI_DEV_GPU_TEMP)"),
        number("Jobs", units.Short, "count(count by (job) (kit_launcher_start_time_seconds))"),
        number("Alerts", units.Short, 'count(ALERTS{alertstate="firing"}) or vector(0)'),
        line("Images per second", PER_SECOND, ("kit:job_images:rate1m", "{{job}}")),
        line("Goodput", RATE, ("kit:job_goodput:ratio_rate5m", "{{job}}")),
        line(
            "GPU-hours by owner",
            units.Short,
            ("sum by (owner) (increase(kit_job_gpu_seconds_total[1d])) / 3600", "{{owner}}"),
            description="Of the jobs of the queue, in the day before each moment.",
        ),
        line("GPU utilisation", RATE, ("avg by (host) (DCGM_FI_DEV_GPU_UTIL) / 100", "{{host}}")),
        line(
            "GPU memory in use",
            units.BytesIEC,
            ("sum by (host) (DCGM_FI_DEV_FB_USED) * 1048576", "{{host}}"),
        ),
        line("Hottest GPU", units.Celsius, ("max by (host) (DCGM_FI_DEV_GPU_TEMP)", "{{host}}")),
        line("Power of GPUs", units.Watt, ("sum by (host) (DCGM_FI_DEV_POWER_USAGE)", "{{host}}")),
        line(
            "Processors in use",
            RATE,
            (
                '1 - avg by (host) (rate(node_cpu_seconds_total{mode="idle"}[1m]))',
                "{{host}}",
            ),
        ),
        line(
            "Sent",
            units.BytesPerSecondSI,
            (
                f"sum by (host) (rate(node_network_transmit_bytes_total{{{LINKS}}}[1m]))",
                "{{host}}",
            ),
        ),
        line(
            "Free on the fullest disk",
            RATE,
            (
                "min by (host) (node_filesystem_avail_bytes / node_filesystem_size_bytes)",
                "{{host}}",
            ),
        ),
        line(
            "Containers that run",
            units.Short,
            (
                'sum by (host) (engine_daemon_container_states_containers{state="running"})',
                "{{host}}",
            ),
        ),
    ),
)
OF_JOB = '{job=~"$job"}'
JOB = Board(
    "job",
    "Job",
    (
        number(
            "Done",
            RATE,
            f"max by (job) (kit_train_step{OF_JOB} / kit_train_planned_steps{OF_JOB})",
        ),
        number("Time left", units.Seconds, f"kit:job_left:seconds{OF_JOB}"),
        number("Accuracy", RATE, f"max by (job) (kit_train_validation_accuracy_ratio{OF_JOB})"),
        number("Ranks", units.Short, f"max by (job) (kit_worker_world_size{OF_JOB})"),
        number("Age of the checkpoint", units.Seconds, f"kit:job_checkpoint_age:seconds{OF_JOB}"),
        number("Goodput", RATE, f"kit:job_goodput:ratio_rate5m{OF_JOB}"),
        line("Images per second", PER_SECOND, (f"kit:job_images:rate1m{OF_JOB}", "{{job}}")),
        line(
            "Images per second of each rank",
            PER_SECOND,
            (f"rate(kit_train_images_total{OF_JOB}[1m])", RANK),
        ),
        line("Loss", "none", (f"kit_train_loss{OF_JOB}", RANK), description="In nats."),
        line(
            "Validation loss",
            "none",
            (f"max by (job) (kit_train_validation_loss{OF_JOB})", "{{job}}"),
            description="In nats.",
        ),
        line(
            "Validation accuracy",
            RATE,
            (f"max by (job) (kit_train_validation_accuracy_ratio{OF_JOB})", "{{job}}"),
        ),
        line(
            "Where the time goes",
            RATE,
            (
                f"sum by (state) (rate(kit_train_seconds_total{OF_JOB}[1m])) / ignoring (state) "
                f"group_left () sum(rate(kit_train_seconds_total{OF_JOB}[1m]))",
                "{{state}}",
            ),
        ),
        line(
            "Data, compute and exchange in the last epoch",
            RATE,
            (f"avg by (kind) (kit_train_time_ratio{OF_JOB})", "{{kind}}"),
        ),
        line("Step", units.Seconds, (f"kit:rank_step_seconds:mean1m{OF_JOB}", RANK)),
        line(
            "Step: median and 99th percentile",
            units.Seconds,
            *(
                (
                    f"histogram_quantile({share}, sum by (le) "
                    f"(rate(kit_train_step_seconds_bucket{OF_JOB}[1m])))",
                    name,
                )
                for share, name in (("0.5", "median"), ("0.99", "99 %"))
            ),
        ),
        line(
            "Work of a rank to that of the median rank",
            "none",
            (f"kit:rank_slowness:ratio{OF_JOB}", RANK),
            description="Others wait for a rank above 1.3.",
        ),
        line(
            "Standstill for checkpoints",
            units.Seconds,
            (f"increase(kit_train_checkpoint_stall_seconds_total{OF_JOB}[5m])", RANK),
        ),
        line(
            "Restarts",
            units.Short,
            (f"max by (host) (kit_worker_restarts_total{OF_JOB})", "{{host}}"),
        ),
        line(
            "GPU utilisation",
            RATE,
            (f"kit_gpu_utilization_ratio{OF_JOB}", "{{host}} {{gpu}}"),
        ),
        line(
            "GPU memory",
            units.BytesIEC,
            (f"kit_gpu_memory_used_bytes{OF_JOB}", "{{host}} {{gpu}}"),
        ),
    ),
    (("job", "kit_launcher_start_time_seconds"),),
)
OF_HOST = 'host=~"$host"'
HOST = Board(
    "host",
    "Host",
    (
        line(
            "Processors in use",
            RATE,
            (
                f'1 - avg by (host) (rate(node_cpu_seconds_total{{mode="idle",{OF_HOST}}}[1m]))',
                "{{host}}",
            ),
        ),
        line(
            "Memory in use",
            units.BytesIEC,
            (
                f"node_memory_MemTotal_bytes{{{OF_HOST}}} - "
                f"node_memory_MemAvailable_bytes{{{OF_HOST}}}",
                "{{host}}",
            ),
        ),
        line(
            "Sent",
            units.BytesPerSecondSI,
            (
                f"rate(node_network_transmit_bytes_total{{{LINKS},{OF_HOST}}}[1m])",
                "{{host}} {{device}}",
            ),
        ),
        line(
            "Received",
            units.BytesPerSecondSI,
            (
                f"rate(node_network_receive_bytes_total{{{LINKS},{OF_HOST}}}[1m])",
                "{{host}} {{device}}",
            ),
        ),
        line(
            "Free on disks",
            RATE,
            (
                f"node_filesystem_avail_bytes{{{OF_HOST}}} / "
                f"node_filesystem_size_bytes{{{OF_HOST}}}",
                "{{host}} {{mountpoint}}",
            ),
        ),
        line(
            "Disks: read and written",
            units.BytesPerSecondSI,
            (f"rate(node_disk_read_bytes_total{{{OF_HOST}}}[1m])", "{{host}} {{device}} read"),
            (
                f"rate(node_disk_written_bytes_total{{{OF_HOST}}}[1m])",
                "{{host}} {{device}} written",
            ),
        ),
        line(
            "GPU utilisation",
            RATE,
            (f"DCGM_FI_DEV_GPU_UTIL{{{OF_HOST}}} / 100", "{{host}} {{gpu}}"),
        ),
        line(
            "GPU memory in use",
            units.BytesIEC,
            (f"DCGM_FI_DEV_FB_USED{{{OF_HOST}}} * 1048576", "{{host}} {{gpu}}"),
        ),
        line(
            "GPU temperature",
            units.Celsius,
            (f"DCGM_FI_DEV_GPU_TEMP{{{OF_HOST}}}", "{{host}} {{gpu}}"),
        ),
        line(
            "GPU power", units.Watt, (f"DCGM_FI_DEV_POWER_USAGE{{{OF_HOST}}}", "{{host}} {{gpu}}")
        ),
        line(
            "GPU clock",
            units.Hertz,
            (f"DCGM_FI_DEV_SM_CLOCK{{{OF_HOST}}} * 1e6", "{{host}} {{gpu}}"),
        ),
        line(
            "Last XID error",
            "none",
            (f"DCGM_FI_DEV_XID_ERRORS{{{OF_HOST}}}", "{{host}} {{gpu}}"),
        ),
        line(
            "Memory errors of GPUs",
            units.Short,
            (f"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{{{OF_HOST}}}", "{{host}} {{gpu}} corrected"),
            (f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{OF_HOST}}}", "{{host}} {{gpu}} not corrected"),
        ),
        line(
            "Jobs on this host",
            units.Short,
            (f"count by (job) (kit_worker_start_time_seconds{{{OF_HOST}}})", "{{job}}"),
        ),
    ),
    (("host", "kit_launcher_start_time_seconds"),),
)
OF_SERVER = 'server=~"$server"'
SERVING = Board(
    "serving",
    "Serving",
    (
        line(
            "Requests per second",
            units.RequestsPerSecond,
            (
                f"sum by (server, status) (rate(kit_serve_requests_total{{{OF_SERVER}}}[1m]))",
                "{{server}} {{status}}",
            ),
        ),
        line(
            "Latency: median and 99th percentile",
            units.Seconds,
            *(
                (
                    f"histogram_quantile({share}, sum by (server, le) "
                    f"(rate(kit_serve_latency_seconds_bucket{{{OF_SERVER}}}[1m])))",
                    f"{{{{server}}}} {name}",
                )
                for share, name in (("0.5", "median"), ("0.99", "99 %"))
            ),
        ),
        line(
            "Samples that wait",
            units.Short,
            (f"sum by (server) (kit_serve_queue_length{{{OF_SERVER}}})", "{{server}}"),
        ),
        line(
            "Samples in a batch",
            units.Short,
            (
                f"sum by (server) (rate(kit_serve_batch_size_sum{{{OF_SERVER}}}[1m])) / "
                f"sum by (server) (rate(kit_serve_batch_size_count{{{OF_SERVER}}}[1m]))",
                "{{server}}",
            ),
        ),
        line(
            "Accuracy of the checkpoint",
            RATE,
            (f"kit_serve_checkpoint_accuracy{{{OF_SERVER}}}", "{{server}} {{host}}"),
            description="A server with a token does not tell it to Prometheus.",
        ),
        line(
            "Step of the checkpoint",
            units.Short,
            (f"kit_serve_checkpoint_step{{{OF_SERVER}}}", "{{server}} {{host}}"),
        ),
        line(
            "Batches that failed",
            units.Short,
            (f"increase(kit_serve_failures_total{{{OF_SERVER}}}[5m])", "{{server}} {{host}}"),
        ),
        line(
            "Checkpoints loaded",
            units.Short,
            (f"kit_serve_reloads_total{{{OF_SERVER}}}", "{{server}} {{host}}"),
        ),
    ),
    (("server", "kit_serve_requests_total"),),
)
BOARDS = (CLUSTER, JOB, HOST, SERVING)


def template(board: Board) -> str:
    """Return the template of a dashboard: its JSON, in which Jinja must read nothing."""
    text = JSONEncoder(sort_keys=True, indent=2).encode(_build(board).build())
    return f"{{% raw %}}\n{text}\n{{% endraw %}}\n"


def _build(board: Board) -> dashboard.Dashboard:
    made = (
        dashboard.Dashboard(f"kit: {board.title}")
        .uid(f"kit-{board.name}")
        .tags(["kit"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .readonly()
    )
    for label, metric in board.variables:
        made = made.with_variable(
            dashboard.QueryVariable(label)
            .datasource(SOURCE)
            .query(f"label_values({metric}, {label})")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(True)
            .multi(True)
        )
    for panel in board.panels:
        made = made.with_panel(_panel(panel))
    return made


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel:
    made: stat.Panel | timeseries.Panel = stat.Panel() if panel.number else timeseries.Panel()
    made = made.title(panel.title).description(panel.description).datasource(SOURCE)
    made = made.unit(panel.unit).span(4 if panel.number else COLUMNS // 2)
    made = made.height(4 if panel.number else 8)
    for query, legend in panel.queries:
        target = prometheus.Dataquery().expr(query).legend_format(legend).datasource(SOURCE)
        made = made.with_target(target.instant() if panel.number else target)
    return made


def main() -> None:
    """Write each template that is not as it should be."""
    for board in BOARDS:
        file = FOLDER / f"{board.name}.json.j2"
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text(encoding="utf-8") != template(board):
            file.write_text(template(board), encoding="utf-8")


if __name__ == "__main__":
    main()
