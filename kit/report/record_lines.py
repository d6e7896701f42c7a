"""Reads a run from the lines of its record. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kit.report.record import Attempt, Epoch, Event, Failure, Rank, Run, Window
from trainer.contract.allocation import Allocation

Line = Mapping[str, Any]


def lines_of(content: bytes) -> Iterator[Line]:
    """Yield the lines of a rank's file; a line that is being written or is damaged is left out."""
    for text in content.split(b"\n"):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and isinstance(line.get("record"), str):
            yield line


def read_run(
    run: str, job: str, ranks: Iterable[Iterable[Line]], evaluation: Mapping[str, Any] | None
) -> Run | None:
    """Return a run from the lines of each rank's files; None if rank 0 has not begun."""
    by_attempt: dict[float, dict[int, list[Line]]] = {}
    for lines in ranks:
        part: list[Line] | None = None
        for line in lines:
            if line["record"] == "begin":
                part = by_attempt.setdefault(_number(line, "attempt"), {}).setdefault(
                    int(_number(line, "rank")), []
                )
            if part is not None:
                part.append(line)
    complete = [by_attempt[each] for each in sorted(by_attempt) if 0 in by_attempt[each]]
    if not complete:
        return None
    begins = [next(_of(parts[0], "begin")) for parts in complete]
    resumed = [int(_number(begin, "step")) for begin in begins]
    attempts = tuple(
        _attempt(parts, begin, resumed[number + 1 :])
        for number, (parts, begin) in enumerate(zip(complete, begins, strict=True))
    )
    ends = [line.get("by_class") for parts in complete for line in _of(parts[0], "epoch")]
    by_class = next((each for each in reversed(ends) if isinstance(each, dict)), None)
    tests = [_metrics(line, "test") for parts in complete for line in _of(parts[0], "epoch")]
    test = next(filter(None, reversed(tests)), {})
    return Run(run, job, attempts, begins[-1], evaluation, by_class=by_class, test=test)


def _attempt(parts: Mapping[int, Sequence[Line]], begin: Line, later: Sequence[int]) -> Attempt:
    kept = min(later) if later else None
    samples = max(_number(begin, "train"), 1.0)
    return Attempt(
        time=_number(begin, "time"),
        step=int(_number(begin, "step")),
        world_size=int(_number(begin, "world_size")),
        ranks=tuple(_rank(parts[rank], samples) for rank in sorted(parts)),
        epochs=tuple(_epoch(line) for line in _of(parts[0], "epoch")),
        events=tuple(_events(parts[0])),
        kept=kept,
        failures=tuple(each for rank in sorted(parts) for each in _failures(parts[rank])),
    )


def _rank(lines: Sequence[Line], samples: float) -> Rank:
    begin = lines[0]
    windows = tuple(
        Window(
            time=_number(line, "time"),
            step=int(_number(line, "step")),
            epoch=_number(line, "epoch") + _number(line, "position") / samples,
            steps=max(1, int(_number(line, "steps"))),
            seconds=_number(line, "seconds"),
            median=_number(line, "median"),
            least=_number(line, "least"),
            most=_number(line, "most"),
            samples=_number(line, "samples"),
            loss=_optional_number(line, "loss"),
            data=_number(line, "data"),
            compute=_number(line, "compute"),
            exchange=_number(line, "communication"),
        )
        for line in _of(lines, "steps")
    )
    return Rank(
        rank=int(_number(begin, "rank")),
        host=str(begin.get("host", "")),
        device=str(begin.get("device", "")),
        gpu=str(begin.get("gpu", "")),
        setup=_number(begin, "setup"),
        windows=windows,
        allocation=_allocation(begin.get("queue")),
    )


def _allocation(queue: Any) -> Allocation | None:
    if not isinstance(queue, dict) or not isinstance(queue.get("owner"), str):
        return None
    return Allocation(
        owner=queue["owner"],
        priority=int(_number(queue, "priority")),
        gpus=int(_number(queue, "gpus")),
        since=_number(queue, "since"),
        waited=_number(queue, "waited"),
    )


def _epoch(line: Line) -> Epoch:
    return Epoch(
        time=_number(line, "time"),
        epoch=int(_number(line, "epoch")),
        step=int(_number(line, "step")),
        loss=_optional_number(line, "loss"),
        accuracy=_optional_number(line, "accuracy"),
        validation_loss=_optional_number(line, "validation_loss"),
        images_per_second=_optional_number(line, "images_per_second"),
        evaluation=_number(line, "evaluation"),
        metrics=_metrics(line),
        tokens_per_second=_optional_number(line, "tokens_per_second"),
        mfu=_optional_number(line, "mfu"),
    )


def _metrics(line: Line, key: str = "metrics") -> dict[str, float]:
    metrics = line.get(key)
    names = metrics if isinstance(metrics, dict) else {}
    return {name: value for name in names if (value := _optional_number(names, name)) is not None}


def _events(lines: Sequence[Line]) -> Iterator[Event]:
    for line in lines:
        if line["record"] in {"saved", "sample", "stop", "end"}:
            yield Event(
                kind=line["record"],
                time=_number(line, "time"),
                step=int(_number(line, "step")),
                epoch=int(_number(line, "epoch")),
                seconds=_number(line, "stall") + _number(line, "evaluation"),
                text=str(line.get("text", "")),
            )


def _failures(lines: Sequence[Line]) -> Iterator[Failure]:
    for line in _of(lines, "failed"):
        yield Failure(
            time=_number(line, "time"),
            rank=int(_number(lines[0], "rank")),
            host=str(lines[0].get("host", "")),
            reason=str(line.get("reason", "")),
            peer=line.get("peer") is True,
        )


def _of(lines: Iterable[Line], record: str) -> Iterator[Line]:
    return (line for line in lines if line["record"] == record)


def _number(line: Line, key: str) -> float:
    return _optional_number(line, key) or 0.0


def _optional_number(line: Line, key: str) -> float | None:
    value = line.get(key)
    return float(value) if isinstance(value, int | float) else None
