"""The records of runs: read from the hosts, and kept on this machine."""

from __future__ import annotations

from collections.abc import Iterable

import click

from kit.plan.storage import checkpoints_volume
from kit.report.archive import Archive
from kit.report.collect import joined, runs_of
from kit.report.record import Run
from kit.runtime.target import Target
from kit.targets.local.folder import state_home
from kit.workload.training import checkpoints_mount
from kit.workload.types import Kind, Workload


def archive_of(cluster: str) -> Archive:
    """Return the copies of the records of a cluster on this machine."""
    return Archive(state_home() / ".runs" / cluster)


def read_runs(target: Target, cluster: str, job: str, workload: Workload | None) -> list[Run]:
    """Return the runs of a job, the oldest first, and keep copies; hosts that fail are reported.

    Without a workload, the job is not in the project's files any more.

    Raises:
        KitError: The hosts cannot be queried.
    """
    archive = archive_of(cluster)
    mount = checkpoints_mount(workload) if workload else checkpoints_volume(cluster, job)
    records = target.records(job, mount.kind, mount.source)
    for error in records.errors:
        click.echo(f"warning: {error}", err=True)
    archive.keep(job, records.files)
    return runs_of(job, joined(records.files, archive.read(job)))


def keep_records(target: Target, cluster: str, workloads: Iterable[Workload]) -> None:
    """Copy the records of jobs before their checkpoints are deleted."""
    for each in workloads:
        if each.kind is Kind.JOB:
            mount = checkpoints_mount(each)
            records = target.records(each.name, mount.kind, mount.source)
            archive_of(cluster).keep(each.name, records.files)
