"""Compare the queue with order of arrival, and with Slurm, on one trace."""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from pathlib import Path

from tests.queue import slurm
from tests.queue.replay import (
    CHANGE,
    CHECKPOINT,
    GPUS,
    HALF_LIFE,
    RESTART,
    Result,
    by_the_queue,
    in_order_of_arrival,
)
from tests.queue.trace import TraceJob, drawn, read

Row = dict[str, str | float | None]
COLUMNS = {
    "name": ("", ""),
    "utilisation": ("in use", "{:.1%}"),
    "wait_mean": ("wait mean h", "{:.2f}"),
    "wait_p50": ("p50 h", "{:.2f}"),
    "wait_p95": ("p95 h", "{:.2f}"),
    "turnaround_mean": ("to end mean h", "{:.2f}"),
    "makespan": ("last end h", "{:.1f}"),
    "lost": ("lost GPU-h", "{:.1f}"),
    "killed": ("if killed", "{:.1f}"),
    "killed_without_checkpoints": ("no checkpoints", "{:.1f}"),
}


def main() -> None:
    # So that the daemons of Slurm end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options = _options()
    gpus = options.hosts * GPUS
    sizes = (options.jobs, gpus, options.load, options.seed)
    trace = read(options.trace, *sizes) if options.trace else drawn(*sizes)
    results = [in_order_of_arrival(trace, options.hosts)]
    notes = _notes(trace, options)
    if options.slurm and (missing := slurm.missing()):
        notes.append(f"Slurm is left out: {missing}.")
    elif options.slurm:
        last = max(results[0].ends.values())
        results.append(slurm.by_slurm(trace, options.hosts, last / (options.minutes * 60)))
        notes.append(results[-1].note)
    else:
        notes.append("Slurm is left out: --slurm runs it, for some minutes.")
    results += [by_the_queue(trace, options.hosts, elastic=elastic) for elastic in (False, True)]
    rows = [_row(result, trace, gpus) for result in results]
    if options.json:
        print(json.dumps({"notes": notes, "rows": rows}, indent=2))
    else:
        print(*_table(rows), "", *notes, sep="\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slurm", action="store_true", help="run the trace with Slurm, too")
    parser.add_argument("--minutes", type=float, default=6.0, help="that Slurm takes, about")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--hosts", type=int, default=16, help=f"hosts with {GPUS} GPUs")
    parser.add_argument("--load", type=float, default=1.3, help="work that arrives, of the GPUs'")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", type=Path, help="philly.csv; see tests/queue/trace.py")
    return parser.parse_args()


def _notes(trace: list[TraceJob], options: argparse.Namespace) -> list[str]:
    several = [job for job in trace if job.gpus > 1]
    elastic = [job for job in trace if job.elastic]
    share = sum(job.work for job in elastic) / sum(job.work for job in trace)
    source = (
        f"{len(trace)} jobs of {options.trace.name}, chosen by chance"
        if options.trace
        else f"{len(trace)} jobs drawn from the distributions of Microsoft's Philly trace (USENIX "
        "ATC 2019), which --trace reads itself"
    )
    return [
        f"{source}; seed {options.seed}, {options.hosts} hosts with {GPUS} GPUs, "
        f"the last job arrives after {trace[-1].arrived / 3600:.1f} h.",
        f"{len(several)} jobs want several GPUs. {len(elastic)} of these, with {share:.0%} of all "
        "work, may have their GPUs on any hosts, and are elastic in the last row only: half to "
        "twice as many GPUs, with a speed in proportion. In the other rows they have a fixed size.",
        "In use: the work of the GPUs until the last job arrives, of all that they could do; time "
        "that a job spends on changes is not work. Waits: all times in which a job has no GPUs. "
        "To end: from its arrival.",
        "Slurm knows how long each job runs, and kit does not. Slurm serves by arrival; kit by "
        f"what people have used, which halves in {HALF_LIFE / 86400:.0f} days.",
        f"Lost: {CHANGE:.0f} s for each change of a job's hosts, {RESTART:.0f} s for each stop "
        "with a checkpoint, times its GPUs. If killed: the same decisions, but a job that shrinks "
        f"or stops loses its work since the last checkpoint, each {CHECKPOINT / 60:.0f} min; or "
        "all its work, without checkpoints.",
    ]


def _row(result: Result, trace: list[TraceJob], gpus: int) -> Row:
    until = trace[-1].arrived
    waits = sorted(result.waits.values())
    turnaround = [result.ends[job.name] - job.arrived for job in trace]
    preempts = result.lost is not None
    hours: dict[str, float | None] = {
        "wait_mean": statistics.fmean(waits),
        "wait_p50": waits[len(waits) // 2],
        "wait_p95": waits[len(waits) * 95 // 100],
        "turnaround_mean": statistics.fmean(turnaround),
        "makespan": max(result.ends.values()),
        "lost": result.lost,
        "killed": result.killed if preempts else None,
        "killed_without_checkpoints": result.killed_without_checkpoints if preempts else None,
    }
    row: Row = {"name": result.name, "utilisation": result.used(until) / until / gpus}
    row.update({key: None if value is None else value / 3600 for key, value in hours.items()})
    if preempts:
        row.update(changes=result.changes, stops=result.stops)
    return row


def _table(rows: list[Row]) -> list[str]:
    cells = [[title for title, _ in COLUMNS.values()]]
    for row in rows:
        cells.append(
            [
                value if isinstance(value := row[key], str) else _number(value, form)
                for key, (_, form) in COLUMNS.items()
            ]
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in cells
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


if __name__ == "__main__":
    main()
