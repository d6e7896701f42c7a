"""The files of a run's record, beside the checkpoints of each host.

    records/20261122-224501-3f2a/
        rank0.jsonl      one JSON object a line, of each rank that runs on this host
        evaluation.json  the predictions of the trained model, on rank 0's host

A line has `record` (begin, steps, epoch, saved, sample, stop, failed or end) and `time`, in
seconds since 1970. A restarted rank appends to its file. The number of lines grows with the
logarithm of the steps (recorder.py), the predictions are bounded (predictions.py), and only the
newest runs are kept: a record stays small.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

FOLDER = "records"
KEEP = 20
"""Number of runs whose records a host keeps."""
EVALUATION = "evaluation.json"


def new_run() -> str:
    """Return a name for a run: its beginning (UTC) and a random part. Names sort by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def rank_file(checkpoints: Path, run: str, rank: int) -> Path:
    """Return the file of a rank."""
    return checkpoints / FOLDER / run / f"rank{rank}.jsonl"


def line(record: str, values: dict[str, Any]) -> str:
    """Return a line, with the present time."""
    found = {"record": record, "time": round(time.time(), 3), **rounded(values)}
    return json.dumps(found, ensure_ascii=False) + "\n"


def append(file: Path, lines: list[str]) -> None:
    """Add lines to a file.

    Raises:
        OSError: The disk refuses them.
    """
    with file.open("a", encoding="utf-8") as stream:
        stream.write("".join(lines))


def rounded(value: Any) -> Any:
    """Return nested values with floats of six digits; non-finite ones become null."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def unfinished(checkpoints: Path, job: dict[str, Any]) -> str | None:
    """Return the newest run of this host if it is of the same job and has no checkpoint.

    Its next attempt begins at the first step again, and belongs to the same run.
    """
    files = sorted((checkpoints / FOLDER).glob("*/rank0.jsonl"))
    if not files:
        return None
    try:
        lines = [json.loads(text) for text in files[-1].read_text("utf-8").splitlines()]
    except (OSError, ValueError):
        return None
    kinds = {each.get("record") for each in lines}
    begun = next((each.get("job") for each in lines if each.get("record") == "begin"), None)
    same = begun == rounded(job) and not kinds & {"saved", "stop", "end"}
    return files[-1].parent.name if same else None


def prune(checkpoints: Path) -> None:
    """Delete all records but those of the newest runs."""
    runs = sorted(each for each in (checkpoints / FOLDER).iterdir() if each.is_dir())
    for old in runs[:-KEEP]:
        with contextlib.suppress(OSError):
            shutil.rmtree(old)
