"""Metrics: one port and one text for all ranks of this host."""

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trainer.contract.allocation import read_allocation
from trainer.launcher.network import family_of
from trainer.launcher.output import say
from trainer.launcher.settings import endpoint_text

# Name, type and meaning, as in trainer/contract/metrics.py; a test compares them.
START = ("kit_launcher_start_time_seconds", "gauge", "Start of the launcher in this container")
STOP = (
    "kit_launcher_stop_time_seconds",
    "gauge",
    "Time at which the launcher was asked to end; 0: it was not",
)
WORKERS = {
    "began": ("kit_worker_start_time_seconds", "gauge", "Start of the worker's process"),
    "restarts": (
        "kit_worker_restarts_total",
        "counter",
        "Restarts of this worker",
    ),
    "world_size": ("kit_worker_world_size", "gauge", "Processes over all hosts"),
    "silent": (
        "kit_worker_silent_seconds",
        "gauge",
        "Time for which this rank of a script has done nothing; 0: less than `quiet`",
    ),
}
INFO = ("kit_job_info", "gauge", "Owner and priority of the job; always 1")
WAITED = (
    "kit_job_waited_seconds",
    "gauge",
    "Time for which the job had waited in the queue when it got this host",
)
GPU_SECONDS = (
    "kit_job_gpu_seconds_total",
    "counter",
    "Time since the job got this host, times the number of its GPUs there",
)
MIB = 2.0**20
# Columns of `nvidia-smi --query-gpu`, and their units in base units.
GPUS = {
    "utilization.gpu": (
        0.01,
        ("kit_gpu_utilization_ratio", "gauge", "Share of time with a running kernel"),
    ),
    "memory.used": (MIB, ("kit_gpu_memory_used_bytes", "gauge", "Memory in use on the GPU")),
    "memory.total": (MIB, ("kit_gpu_memory_size_bytes", "gauge", "Memory of the GPU")),
    "temperature.gpu": (1.0, ("kit_gpu_temperature_celsius", "gauge", "Temperature of the GPU")),
    "power.draw": (1.0, ("kit_gpu_power_watts", "gauge", "Power that the GPU draws")),
}
GPUS_EVERY = 5.0  # Seconds between two calls of nvidia-smi, which takes up to a second.
READ_EVERY = 5.0  # Seconds between two reads by Prometheus (prometheus.yml).
Family = tuple[str, str, str]  # Name, type, meaning.
Sample = Sequence[Any]  # Suffix of the name, labels, value.


def serve_metrics(endpoint: tuple[str, int], folder: Path) -> "Metrics | None":
    """Serve /metrics in a thread. `folder` has a file of each worker, and one of each rank.

    If the port cannot be used, only warn: the training does not need it.
    """
    metrics = Metrics(folder, os.environ)

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # Seconds.

        def do_GET(self) -> None:
            """Answer with the metrics, at one path."""
            found = self.path.partition("?")[0] == "/metrics"
            content = metrics.text().encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing: Prometheus sends a request every few seconds."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = family_of(endpoint[0])

    try:
        server = Server(endpoint, Handler)
    except OSError as error:
        say(f"warning: no metrics at {endpoint_text(endpoint)}: {error.strerror}", error=True)
        return None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    say(f"metrics at http://{endpoint_text(endpoint)}/metrics")
    return metrics


class Metrics:
    """Joins the metrics of the launcher, of its workers and of their GPUs to one text."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._stop, self._read = 0.0, float("-inf")  # Times of the request to end and last read.
        self._told = threading.Event()  # The request to end was read.
        self._labels = {"job": environ.get("KIT_NAME", ""), "host": environ.get("KIT_HOST", "")}
        self._labels["host"] = self._labels["host"] or socket.gethostname()
        self._began = float(environ.get("KIT_BEGAN") or time.time())
        self._uuids = [uuid for uuid in environ.get("KIT_GPUS", "").split(",") if uuid]
        self._allocation = read_allocation(environ)
        self._rows: list[list[str]] = []
        self._due, self._lock = 0.0, threading.Lock()
        self.silent: dict[int, float] = {}  # Seconds, by local rank.

    def text(self) -> str:
        """All metrics in Prometheus' text format (0.0.4): each family in one block."""
        families: dict[Family, list[Sample]] = {
            START: [("", self._labels, self._began)],
            STOP: [("", self._labels, self._stop)],
        }
        for family, sample in [*self._owned(), *self._workers(), *self._gpus()]:
            families.setdefault(family, []).append(sample)
        self._read = time.monotonic()
        if self._stop:
            self._told.set()
        return "".join(map(block, families, families.values()))

    def wait_for_reader(self) -> None:
        """After a request to end, wait until Prometheus reads it; otherwise the job seems to fail.

        Without a regular reader, do not wait.
        """
        if self._stop and time.monotonic() - self._read < 4 * READ_EVERY:
            self._told.wait(READ_EVERY + 1)

    def ask_to_end(self) -> None:
        """Record that a signal asked this process to end."""
        self._stop = self._stop or time.time()

    def _owned(self) -> Iterator[tuple[Family, Sample]]:
        if (own := self._allocation) is None:
            return
        labels = {**self._labels, "owner": own.owner}
        yield INFO, ("", {**labels, "priority": str(own.priority)}, 1)
        yield WAITED, ("", labels, own.waited)
        yield GPU_SECONDS, ("", labels, own.gpus * max(0.0, time.time() - own.since))

    def _workers(self) -> Iterator[tuple[Family, Sample]]:
        for file in sorted(self._folder.glob("worker-*.json")):
            if not (worker := read_object(file)):
                continue
            local = worker["local_rank"]
            worker["silent"] = self.silent.get(local, 0)
            gpu = self._uuids[local] if local < len(self._uuids) else ""
            labels = {**self._labels, "rank": str(worker.get("rank")), "gpu": gpu}
            for key, family in WORKERS.items():
                yield family, ("", labels, worker.get(key, 0))
            rank = read_object(file.with_name(f"rank-{local}.json"))
            for name, kind, meaning, samples in rank.get("families", []):
                for sample in samples:
                    yield (name, kind, meaning), sample

    def _gpus(self) -> Iterator[tuple[Family, Sample]]:
        for uuid, *values in self._query():
            for (factor, family), value in zip(GPUS.values(), values, strict=False):
                with suppress(ValueError):  # [N/A]: this GPU does not measure it.
                    labels = {**self._labels, "gpu": uuid}
                    yield family, ("", labels, float(value) * factor)

    def _query(self) -> list[list[str]]:
        """The rows of nvidia-smi, at most GPUS_EVERY seconds old; none if it does not answer."""
        with self._lock:
            if self._uuids and time.monotonic() >= self._due:
                command = ["nvidia-smi", f"--query-gpu={','.join(('uuid', *GPUS))}"]
                command += ["--format=csv,noheader,nounits"]
                self._rows = []
                with suppress(OSError, subprocess.TimeoutExpired):
                    found = subprocess.run(command, capture_output=True, text=True, timeout=5)
                    rows = [line.split(", ") for line in found.stdout.splitlines()]
                    self._rows = [row for row in rows if row[0] in self._uuids]
                self._due = time.monotonic() + GPUS_EVERY
            return self._rows


def block(family: Family, samples: Sequence[Sample]) -> str:
    """A family in Prometheus' text format."""
    name, kind, meaning = family
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
    for suffix, labels, value in samples:
        escaped = {key: json.dumps(each, ensure_ascii=False) for key, each in labels.items()}
        words = ",".join(f"{key}={each}" for key, each in escaped.items())
        lines.append(f"{name}{suffix}{{{words}}} {float(value)!r}")
    return "\n".join(lines) + "\n"


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object of a file; empty if it is deleted or being written."""
    with suppress(OSError, ValueError):
        found = json.loads(file.read_text())
        return found if isinstance(found, dict) else {}
    return {}
