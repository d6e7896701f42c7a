"""The code of jobs before a deploy: its commit, and its upload to the storage host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import click

from kit.code.folder import list_code, printable
from kit.code.pack import packed
from kit.datasets.cluster import DataCluster
from kit.errors import InputError
from kit.jobs import Package
from kit.model import DataSet
from kit.paths import Paths, identity
from kit.plan.notes import package_notes
from kit.runtime.history import newest
from kit.runtime.rendered import rendered
from kit.runtime.source import current_source
from kit.runtime.target import Target
from kit.values import count, show_bytes
from kit.workload.types import Workload
from trainer.contract.code import PREFIX

LONGEST = 500
"""Characters of a folder and its commit in the store's manifest."""


def with_code(target: Target, workloads: Sequence[Workload], paths: Paths) -> list[Workload]:
    """Store the code of workloads on the storage host; return them with the code's commits.

    Raises:
        InputError: A folder has changed since it was read.
        KitError: The storage host cannot be reached, or has no room.
    """
    works = [replace(each, package=_with_source(each.package, paths)) for each in workloads]
    jobs = {work.package: work.name for work in works if work.package}
    if not jobs:
        return works
    cluster, _ = identity(paths)
    tree = rendered(paths.tree(cluster))
    data, needs = tree.data, tree.needs
    assert data is not None  # A job with code has data services.
    services = DataCluster(cluster, data, target.data_folder())
    kept = _kept(target, needs.values())
    for package, job in jobs.items():
        click.echo(f"code {package.version}: {size_of(package)} of {package.described}")
        for note in package_notes(job, package):
            click.echo(f"note: {note}", err=True)
        described = printable(package.described)[:LONGEST]
        archive = partial(_archive, package, paths)
        services.put(package.data_set.name, described, kept, archive)
    for work in works:
        if work.package:
            hosts = {each.host.name for each in work.placements}
            services.prefetch(hosts, [work.package.data_set])
    return works


def _kept(target: Target, needs: Iterable[Sequence[DataSet]]) -> list[str]:
    """Return the code to keep in the store: that of all jobs, as rendered and as deployed."""
    deployed = newest(target.history()).values()
    versions = {f"{PREFIX}{each.code.partition(' ')[0]}" for each in deployed if each.code}
    names = {each.name for sets in needs for each in sets if each.name.startswith(PREFIX)}
    return sorted(versions | names)


def _with_source(package: Package | None, paths: Paths) -> Package | None:
    if package is None or not package.here:
        return package
    source = current_source(paths.inventory.parent / package.folder)
    return replace(package, source=source.described)


def size_of(package: Package) -> str:
    """Return the size of a package as text."""
    if not package.here:
        return "as rendered: the folder is not on this machine"
    return f"{count(package.files, 'file')}, {show_bytes(package.bytes)}"


def _archive(package: Package, paths: Paths) -> Iterator[bytes]:
    folder = paths.inventory.parent / package.folder
    if not package.here:
        what = f"the code {package.version} is not stored, and there is no {folder}"
        raise InputError(what, "deploy where the folder is, or get it and run `kit render`")
    listing = list_code(folder, package.exclude, package.include, paths.own())
    yield from packed(listing.entries, package.sha256, folder)
