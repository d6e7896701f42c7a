"""The reference of the metrics, from their table."""

from __future__ import annotations

from collections.abc import Iterable

from trainer.contract.metrics import LAUNCHER, QUEUE, STATES, TRAINER, Metric

HEAD = """\
# Metrics

Each host of a job serves one page for [Prometheus](../how-to/monitoring.md),
`http://HOST:PORT/metrics`, with the metrics of the launcher and of all ranks of the host. The port
is [`metrics`](job.md#metrics) of the job. With `monitoring` in the inventory every job has one:
9500 on an overlay network; elsewhere one from 9500 to 10499 that follows from the name of the job.
With the local engine, the hosts of a job take consecutive ports of 127.0.0.1.

The labels are those of the job, not of Prometheus' target: `job`, `host`, `rank` and `gpu`, the
UUID. Without a GPU, `gpu` is empty, which Prometheus treats as missing. A rank writes its metrics
every two seconds of training.
`trainer/contract/metrics.py` defines them. The last column is the [event](events.md) with the same
figure.
"""
OF_QUEUE = """\
The counter begins when the job gets the host, and continues when its container restarts. The
GPU-hours of people in a time, or of jobs with `by (job)`:

    sum by (owner) (increase(kit_job_gpu_seconds_total[7d])) / 3600
"""


def metrics_page() -> str:
    """Return the page of all metrics."""
    states = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in STATES.items())
    return (
        f"{HEAD}\n## From the launcher\n\nOf every job, also of scripts.\n\n"
        f"{_table(LAUNCHER)}\n## From the launcher, of jobs of the queue\n\n{OF_QUEUE}\n"
        f"{_table(QUEUE)}\n## From the built-in training\n\n{_table(TRAINER)}\n"
        "## States\n\nAt each moment a rank is in one state. The seconds of all states add up to "
        f"the time since the launcher began.\n\n| `state` | time |\n| --- | --- |\n{states}\n"
    )


def _table(metrics: Iterable[Metric]) -> str:
    head = "| metric | type | unit | labels | meaning | event |\n" + "| --- " * 6 + "|\n"
    rows = (
        f"| `{each.name}` | {each.kind} | {each.unit} | {', '.join(each.labels)} "
        f"| {each.meaning} | {each.event} |\n"
        for each in metrics
    )
    return head + "".join(rows)
