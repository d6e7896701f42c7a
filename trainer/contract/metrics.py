"""The names, types, labels and meanings of a training's Prometheus metrics.

core/meter.py and launcher/metrics.py measure them; the latter has a copy of its names, as it
is mounted into other images. Dashboards, rules and `docs/reference/metrics.md` use the names.
Names follow Prometheus' conventions: base units, `_total` for counters. Names never change; new
ones may be added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

JOB = ("job", "host")
RANK = (*JOB, "rank", "gpu")
GPU = (*JOB, "gpu")
OWNER = (*JOB, "owner")

STATES = {
    "useful": "forward and backward passes, updates and validation",
    "data": "waiting for samples and moving them to the GPU",
    "exchange": "exposed communication between ranks (not overlapped with compute)",
    "checkpoint": "paused for a checkpoint",
    "restart": "starting: Python, PyTorch, joining the other ranks, resuming",
    "idle": "no process: waiting for the coordinator, for other hosts, for room on the disk",
    "lost": "steps that were done before, after the last checkpoint before a restart",
}
"""The states of `kit_train_seconds_total`: at each moment a rank is in exactly one."""

STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds in seconds: from a small network on one GPU to a large one over a slow link."""


@dataclass(frozen=True)
class Metric:
    """A family of samples. `event` is the event and field with the same figure."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    labels: tuple[str, ...]
    meaning: str
    event: str = ""


LAUNCHER = (
    Metric(
        "kit_launcher_start_time_seconds",
        "gauge",
        "s since 1970",
        JOB,
        "Start of the launcher in this container",
        "`started`: `time`",
    ),
    Metric(
        "kit_launcher_stop_time_seconds",
        "gauge",
        "s since 1970",
        JOB,
        "Time at which the launcher was asked to end; 0: it was not",
    ),
    Metric(
        "kit_worker_start_time_seconds",
        "gauge",
        "s since 1970",
        RANK,
        "Start of the worker's process",
    ),
    Metric(
        "kit_worker_restarts_total",
        "counter",
        "1",
        RANK,
        "Restarts of this worker",
        "`member`: `restarts`",
    ),
    Metric(
        "kit_worker_world_size",
        "gauge",
        "1",
        RANK,
        "Processes over all hosts",
        "`member`: `world_size`",
    ),
    Metric(
        "kit_worker_silent_seconds",
        "gauge",
        "s",
        RANK,
        "Time for which this rank of a script has done nothing; 0: less than `quiet`",
        "`silent`: `seconds`",
    ),
    Metric(
        "kit_gpu_utilization_ratio", "gauge", "0 to 1", GPU, "Share of time with a running kernel"
    ),
    Metric("kit_gpu_memory_used_bytes", "gauge", "byte", GPU, "Memory in use on the GPU"),
    Metric("kit_gpu_memory_size_bytes", "gauge", "byte", GPU, "Memory of the GPU"),
    Metric("kit_gpu_temperature_celsius", "gauge", "°C", GPU, "Temperature of the GPU"),
    Metric("kit_gpu_power_watts", "gauge", "W", GPU, "Power that the GPU draws"),
)
"""From the launcher, also for custom scripts."""

QUEUE = (
    Metric(
        "kit_job_info",
        "gauge",
        "1",
        (*OWNER, "priority"),
        "Owner and priority of the job; always 1",
        "`allocated`: `owner`, `priority`",
    ),
    Metric(
        "kit_job_waited_seconds",
        "gauge",
        "s",
        OWNER,
        "Time for which the job had waited in the queue when it got this host",
        "`allocated`: `waited`",
    ),
    Metric(
        "kit_job_gpu_seconds_total",
        "counter",
        "s",
        OWNER,
        "Time since the job got this host, times the number of its GPUs there",
        "`allocated`: `gpus`, `since`",
    ),
)
"""From the launcher, of jobs of the queue."""

TRAINER = (
    Metric(
        "kit_train_step_seconds",
        "histogram",
        "s",
        RANK,
        "Duration of an optimizer step by the host's clock",
    ),
    Metric(
        "kit_train_steps_total",
        "counter",
        "1",
        RANK,
        "Optimizer steps of this rank, repeated ones included",
    ),
    Metric(
        "kit_train_images_total",
        "counter",
        "1",
        RANK,
        "Training samples of this rank, repeated ones included",
        "`progress`: `images_per_second` is the rate over all ranks",
    ),
    Metric(
        "kit_train_tokens_total",
        "counter",
        "1",
        RANK,
        "Training tokens or characters of this rank, of a text; repeated ones included",
        "`progress`: `tokens_per_second` is the rate over all ranks",
    ),
    Metric(
        "kit_train_mfu_ratio",
        "gauge",
        "1",
        RANK,
        "Share of all GPUs' peak that the model's operations used in the last epoch, of a text",
        "`epoch`: `mfu`",
    ),
    Metric(
        "kit_train_step",
        "gauge",
        "1",
        RANK,
        "Optimizer steps of the job done",
        "`progress`: `step`",
    ),
    Metric(
        "kit_train_planned_steps",
        "gauge",
        "1",
        RANK,
        "Optimizer steps of the whole job at this world size",
        "`progress`: `steps`",
    ),
    Metric("kit_train_epoch", "gauge", "1", RANK, "Whole epochs done", "`progress`: `epoch`"),
    Metric(
        "kit_train_planned_epochs", "gauge", "1", RANK, "Epochs of the job", "`progress`: `epochs`"
    ),
    Metric(
        "kit_train_loss",
        "gauge",
        "nat",
        RANK,
        "Mean cross entropy of this rank's samples of the epoch so far",
        "`progress`: `loss`",
    ),
    Metric(
        "kit_train_validation_accuracy_ratio",
        "gauge",
        "0 to 1",
        RANK,
        "Share of all test samples that are classified correctly",
        "`epoch`: `accuracy`",
    ),
    Metric(
        "kit_train_validation_loss",
        "gauge",
        "nat",
        RANK,
        "Mean cross entropy of all test samples",
    ),
    Metric("kit_train_validation_seconds_total", "counter", "s", RANK, "Time of the validations"),
    Metric(
        "kit_train_time_ratio",
        "gauge",
        "0 to 1",
        (*RANK, "kind"),
        "Share of all ranks' time in the last epoch, of kind data, compute or exchange",
        "`epoch`: `exchange_share`",
    ),
    Metric(
        "kit_train_seconds_total",
        "counter",
        "s",
        (*RANK, "state"),
        "Time since the launcher began, by state; the states add up to it",
    ),
    Metric(
        "kit_train_checkpoint_timestamp_seconds",
        "gauge",
        "s since 1970",
        RANK,
        "Time at which this rank completed its newest checkpoint, on ranks that write them",
        "`saved`: `time`",
    ),
    Metric(
        "kit_train_checkpoints_total",
        "counter",
        "1",
        RANK,
        "Checkpoints that were begun",
        "`saved`",
    ),
    Metric(
        "kit_train_checkpoint_stall_seconds_total",
        "counter",
        "s",
        RANK,
        "Time for which checkpoints paused the training",
    ),
    Metric(
        "kit_train_skipped_steps_total",
        "counter",
        "1",
        RANK,
        "Steps without an update, as a loss was not finite",
    ),
    Metric(
        "kit_train_unmoved_steps",
        "gauge",
        "1",
        RANK,
        "Steps in a row that have not changed the weights: losses or gradients were not finite",
        "`unmoved`: `steps`",
    ),
    Metric(
        "kit_train_gpu_memory_bytes",
        "gauge",
        "byte",
        (*RANK, "kind"),
        "Memory of PyTorch's allocator: kind allocated, reserved or peak; only on a GPU",
    ),
    Metric(
        "kit_train_start_time_seconds",
        "gauge",
        "s since 1970",
        RANK,
        "Time at which this process began to train",
        "`begin`: `time`",
    ),
    Metric(
        "kit_train_update_time_seconds",
        "gauge",
        "s since 1970",
        RANK,
        "Time at which this rank wrote its figures; of a rank that hangs it stays behind",
    ),
)
"""From each rank of the built-in training."""

METRICS = {metric.name: metric for metric in (*LAUNCHER, *QUEUE, *TRAINER)}
