"""From a lowered plan to what the doctor expects of the hosts."""

from __future__ import annotations

from collections.abc import Collection
from types import MappingProxyType

from kit.doctor.facts import Wanted
from kit.doctor.wanted import wanted_of
from kit.paths import Paths
from kit.plan.data import Sizes
from kit.targets.lowered import Lowered


def expectations(
    lowered: Lowered,
    paths: Paths,
    names: Collection[str] | None = None,
    sizes: Sizes = MappingProxyType({}),
) -> Wanted:
    """Return what the doctor expects of the hosts; `names` are the jobs and servers (None: all).

    `sizes` are those of the stored data sets, as far as they are known.
    """
    placed = [each for each in lowered.workloads if each.parts]
    return wanted_of(
        lowered.plan,
        [each for each in placed if names is None or each.name in names],
        tree=str(paths.tree(lowered.cluster)),
        managers=lowered.managers,
        labels=lowered.labels,
        overlay=lowered.overlay,
        ports=lowered.ports,
        sizes=sizes,
    )
