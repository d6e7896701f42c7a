"""The status of a workload, completed with the reports of its processes. Pure."""

from __future__ import annotations

from dataclasses import replace

from kit.runtime.events import Reader
from kit.runtime.status import JobStatus


def with_reports(status: JobStatus, reader: Reader) -> JobStatus:
    """Return a status with the progress and the failures of its processes.

    The engine's data has priority: its hosts, and its newest checkpoint if known.
    """
    return replace(
        status,
        progress=reader.progress,
        checkpoint=status.checkpoint or reader.checkpoint,
        world_size=reader.world_size,
        last_step=reader.last_step,
        restarts=reader.restarts,
        failure=reader.failure,
        exit_code=reader.exit_code,
        paces=reader.paces,
        warning=reader.untaught,
        session=reader.session,
    )
