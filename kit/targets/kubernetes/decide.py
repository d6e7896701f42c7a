"""The decision on the steps of a deploy in Kubernetes: a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from kit.errors import KitError
from kit.runtime.steps import Step
from kit.targets.kubernetes.names import MAKERS, claim_name, secret_name
from kit.targets.kubernetes.state import Namespace, Object
from kit.workload.types import Kind, Workload

WHERE = "kubernetes"
CHANGED = "its file has changed"
SEEN = (
    *("job/", "jobset/", "trainjob/", "trainingruntime/"),
    *("deployment/", "configmap/", "resourceclaimtemplate/"),
)
"""The kinds of objects whose absence kit detects, by the beginnings of their titles."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A workload's rendered file: its hash, and its objects as `kind/name` in small letters.

    `by_hand` are the changes that others have made since, or "". `resizes`: Kubernetes can change
    the running Jobs into those of the file.
    """

    version: str
    objects: frozenset[str]
    by_hand: str = ""
    resizes: bool = False


@dataclass(frozen=True, slots=True)
class EndJobs(Step):
    """Delete the objects that train, and wait until the pods have saved and ended."""

    stack: str
    titles: tuple[str, ...]
    grace: int


@dataclass(frozen=True, slots=True)
class DeleteClaim(Step):
    """Delete the volume claim with a job's checkpoints."""

    name: str


@dataclass(frozen=True, slots=True)
class MakeSecret(Step):
    """Write the Secret with a workload's secrets."""

    workload: str
    stack: str
    name: str


@dataclass(frozen=True, slots=True)
class Apply(Step):
    """Apply the objects of a workload's file."""

    stack: str


@dataclass(frozen=True, slots=True)
class Prune(Step):
    """Delete objects that the file of a workload does not have any more.

    `late`: when its new pods run. Until then, former ones may need them to be created again.
    """

    titles: tuple[str, ...]
    late: bool = False


@dataclass(frozen=True, slots=True)
class Remove(Step):
    """Delete everything of a workload but its volume claim."""

    stack: str
    grace: int


def decide(
    work: Sequence[Workload], found: Namespace, wanted: Mapping[str, Wanted], *, fresh: bool
) -> tuple[Step, ...]:
    """Return the steps of a deploy; none for workloads that run as their files say.

    The scheduler waits for GPUs that others still hold, so their order does not matter.

    Raises:
        KitError: A job runs whose checkpoints were to be deleted, or a server reads them.
    """
    return tuple(step for each in work for step in _steps(each, found, wanted, fresh=fresh))


def decide_shared(stack: str, found: Namespace, want: Wanted | None) -> Iterator[Step]:
    """Yield the steps for the objects that all workloads share."""
    there = found.of(stack)
    same = want and {each.title for each in there} == want.objects
    if want and not (same and all(each.file == want.version for each in there)):
        yield Apply(
            WHERE,
            f"apply {stack}",
            "its file has changed" if there else "it is not deployed",
            stack,
        )
        yield from _pruned({each.title for each in there} - want.objects)


def _steps(
    work: Workload, found: Namespace, wanted: Mapping[str, Wanted], *, fresh: bool
) -> Iterator[Step]:
    stack, objects = work.stack, found.of(work.stack)
    if not work.parts:
        if objects:
            what = f"remove {stack}"
            yield Remove(WHERE, what, "no GPU is given to it", stack, 0)
        return
    fresh = fresh and work.kind is Kind.JOB
    if fresh:
        _refuse_fresh(work, found)
    want = wanted[stack]
    again = _replaced(work, found, want, fresh=fresh)
    resized = _resized(work, found, want) if not again else ""
    cause = again or resized or _repaired(work, found, want)
    left = {each.title for each in objects if _outlives(each)} - want.objects
    if not cause:
        if not any(each.rolls for each in found.working(stack)):
            yield from _pruned(left)
        return
    if again:
        yield from _ends(work, found, cause)
    if again or resized:
        yield from _ends_coordinator(work, found, cause)
    if fresh and work.store and work.store.volume:
        what = f"delete the checkpoints of {work.name}"
        yield DeleteClaim(WHERE, what, "--fresh", claim_name(work.name))
    if work.secrets:
        name = secret_name(work)
        yield MakeSecret(WHERE, f"write the Secret {name}", cause, work.name, stack, name)
    yield from _applied(work, cause, left)


def _ends(work: Workload, found: Namespace, cause: str) -> Iterator[Step]:
    """Yield the steps that end what another file replaces."""
    grace = max((part.grace or 0 for part in work.working), default=0)
    if owners := found.owners(work.stack):
        yield EndJobs(WHERE, f"end {', '.join(owners)}", cause, work.stack, owners, grace)


def _ends_coordinator(work: Workload, found: Namespace, cause: str) -> Iterator[Step]:
    """Yield the step that ends the coordinator: its template names the number of hosts."""
    coordinators = (each.title for each in found.coordinators(work.stack) if not each.owner)
    if old := tuple(coordinators):
        yield Prune(WHERE, f"end the coordinator of {work.name}", cause, old)


def _applied(work: Workload, cause: str, left: Set[str]) -> Iterator[Step]:
    """Yield the steps that apply a file, and delete what is `left` of the one before."""
    apply = Apply(WHERE, f"apply {work.stack}", cause, work.stack)
    if work.kind is Kind.JOB:
        # Its pods have ended; and JobSet makes no Service while it finds the one of a Job.
        yield from _pruned(left)
        yield apply
        return
    holds = {title for title in left if title.startswith("deployment/")}
    yield apply
    yield from _pruned(holds)  # The new pods need its GPUs.
    yield from _pruned(left - holds, late=True)


def _outlives(thing: Object) -> bool:
    """Return whether an object stays when a file without it replaces the one that it is from."""
    return thing.kind not in {"Job", *MAKERS} and not thing.made


def _pruned(titles: Iterable[str], *, late: bool = False) -> Iterator[Prune]:
    if old := tuple(sorted(titles)):
        what = f"delete {', '.join(old)}"
        when = ", when its new pods run" if late else ""
        yield Prune(WHERE, what, f"its file does not have them any more{when}", old, late)


def _refuse_fresh(work: Workload, found: Namespace) -> None:
    running = [job for job in found.jobs(work.stack) if not job.ended]
    if running:
        raise KitError(f"job {work.name} runs: end it first, `kit stop {work.name}`")
    claim = claim_name(work.name)
    readers = sorted({pod.stack for pod in found.pods if claim in pod.claims} - {work.stack})
    if readers:
        what = f"{', '.join(readers)} reads the checkpoints of {work.name}, which are deleted"
        raise KitError(what, f"end it first: `kit stop {' '.join(readers)}`")
    if work.store is not None and not work.store.volume:
        what = f"job {work.name} keeps its checkpoints in {work.store.place}"
        raise KitError(what, "move them away to start from the beginning")


def _replaced(work: Workload, found: Namespace, want: Wanted, *, fresh: bool) -> str:
    """Return why a workload starts again; "" if it runs on."""
    works = found.working(work.stack)
    if not works:
        return "it is not deployed"
    if fresh:
        return "--fresh"
    if all(job.ended for job in works):
        return "it has ended"
    return CHANGED if _changed(works, want) and not want.resizes else ""


def _resized(work: Workload, found: Namespace, want: Wanted) -> str:
    """Return why the Jobs of a running workload change, while its other pods run on; or ""."""
    return f"{CHANGED}; its pods continue" if _changed(found.working(work.stack), want) else ""


def _changed(works: Iterable[Object], want: Wanted) -> bool:
    return any(each.file != want.version for each in works)


def _repaired(work: Workload, found: Namespace, want: Wanted) -> str:
    """Return why the objects of a running workload are applied again, without ending it."""
    there = {each.title for each in found.of(work.stack)}
    missing = sorted(title for title in want.objects - there if title.startswith(SEEN))
    return f"{', '.join(missing)} is missing" if missing else want.by_hand
