"""The final status of workloads without containers, stored as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kit.errors import KitError
from kit.runtime.status import HostStatus, JobStatus, Progress, RankPace, State
from kit.workload.types import Kind


def written(status: JobStatus) -> dict[str, Any]:
    """Return a status as a JSON object."""
    return asdict(status)


class NoLinesError(KitError):
    """The lines of a workload went with its containers."""


def without_lines(status: JobStatus) -> NoLinesError:
    """Return the error of a workload whose lines went with its containers."""
    what = f"{status.job} has no lines any more: it {status.state}, and its containers were removed"
    reason = "\n".join(f"  {each}" for each in (status.failure, status.message) if each)
    return NoLinesError(f"{what}\n{reason}".rstrip(), f"`kit deploy {status.job}` starts it again")


def read(found: dict[str, Any]) -> JobStatus:
    """Parse the result of `written`.

    Raises:
        ValueError, KeyError, TypeError: Another version of kit wrote it.
    """
    hosts = tuple(
        HostStatus(
            **{
                **host,
                "state": State(host["state"]),
                **{name: tuple(host[name]) for name in ("devices", "ranks", "seen")},
            }
        )
        for host in found["hosts"]
    )
    parts = {
        "kind": Kind(found["kind"]),
        "state": State(found["state"]),
        "hosts": hosts,
        "progress": Progress(**found["progress"]) if found["progress"] else None,
        "urls": tuple(found["urls"]),
        "paces": tuple(RankPace(**each) for each in found.get("paces", ())),
    }
    return JobStatus(**{**found, **parts})
