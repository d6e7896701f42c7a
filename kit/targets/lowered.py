"""What a target makes of a plan: workloads in its terms, and the files that are rendered."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kit.model import EngineName
from kit.plan.images import unlocked
from kit.plan.notes import lock_notes
from kit.plan.work import Plan
from kit.workload.types import Config, Workload

VERSION = "{hash of this file}"
"""Where a file's labels hold the hash of the file, until it is known."""


def digest(text: str) -> str:
    """Return what tells versions of a text apart: 8 digits of its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def file_version(text: str) -> str:
    """Return the hash in a rendered file's labels, or of the text where a template has none."""
    found = re.search(r'kit\.file: "([0-9a-f]{8})"', text)
    return found[1] if found else digest(text)


@dataclass(frozen=True, slots=True)
class Output:
    """A file of the tree: a template, and the values that it prints.

    `sources` are the files besides the inventory that it says it is made from; of those of a
    program, as JSON, there is no such line. Of `configs` the template gets the names that carry
    the hash of their content. `hashes_configs`: the hash in its labels covers their contents too,
    for what mounts them under names that do not tell.
    """

    path: str
    template: str
    values: Mapping[str, object]
    sources: tuple[str, ...] = ()
    configs: tuple[Config, ...] = ()
    stack: str = ""
    hashes_configs: bool = False


@dataclass(frozen=True, slots=True)
class Lowered:
    """A plan in the terms of one target.

    `workloads` are the jobs, then the servers, idle ones among them. `images` are the names of
    those that hosts run, `optional_images` of those that no host ever pulls. `notes` are the plan's
    and the target's own.
    """

    engine: EngineName
    plan: Plan
    workloads: tuple[Workload, ...]
    outputs: tuple[Output, ...] = ()
    images: tuple[str, ...] = ()
    optional_images: tuple[str, ...] = ()
    own_notes: tuple[str, ...] = field(default=())

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.plan.cluster

    @property
    def unlocked(self) -> tuple[str, ...]:
        """The images that an existing lock leaves out."""
        return unlocked(self.images, self.plan.lock)

    @property
    def notes(self) -> tuple[str, ...]:
        """Judgements that a person should read."""
        return (*self.own_notes, *self.plan.notes, *lock_notes(self.unlocked))

    def workload(self, name: str) -> Workload:
        """Return a workload by its name.

        Raises:
            KeyError: There is none.
        """
        return {each.name: each for each in self.workloads}[name]
