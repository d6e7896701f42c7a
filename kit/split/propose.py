"""From the selectors of the command line to the inventory's new text, or to an error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kit.config.load import Project
from kit.errors import INVENTORY, FaultsError, InputError, ProblemsError
from kit.model import Inventory
from kit.plan.work import Plan
from kit.project import lowered_of, lowered_with
from kit.split.compare import Move, State, made_idle, moves, state, with_suggestions
from kit.split.edit import changes_only, edited
from kit.split.gaps import Gap, gaps
from kit.split.sections import Split, moved
from kit.split.select import Selectors, select
from kit.yamlfile import Document, parse


@dataclass(frozen=True, slots=True)
class Proposal:
    """A valid split: its moves, its effects, and the inventory's new text.

    `gaps` are the servers that answer nowhere while it is carried out.
    """

    moves: tuple[Move, ...]
    before: State
    after: State
    text: str
    gaps: tuple[Gap, ...] = ()


def propose(project: Project, path: Path, text: str, selectors: Selectors) -> Proposal:
    """Return the proposed split; `text` is the exact content of the inventory's file `path`.

    Raises:
        ProblemsError: The selectors are wrong, or the text to change is shared.
        InputError: The split would break a job or leave a server without a GPU.
    """
    old = _plan(project, {})
    before = state(project.inventory, old)
    idle_is_meant = selectors.number() == 0
    last: list[tuple[Split, Plan]] = []  # The chosen GPUs are planned already.

    def _valid(split: Split) -> bool:
        plan = _plan(project, split)
        if plan is None:
            return False
        last[:] = [(split, plan)]
        after = state(moved(project.inventory, split), plan)
        return idle_is_meant or not made_idle(before, after)

    document = project.sources.documents[INVENTORY]
    try:
        split = select(project.inventory, selectors, _valid)
        new = edited(text, str(path), split, document)
    except FaultsError as error:
        raise project.sources.problems(error.faults) from None
    changed = moved(project.inventory, split)
    planned = last[0][1] if last and last[0][0] == split else _after(project, changed)
    after = state(changed, planned)
    if not idle_is_meant:
        _refuse_idle(before, after)
    _verify(path, new, document, split)
    after = with_suggestions(before, after, project.jobs)
    left = gaps(old, planned) if old else ()
    return Proposal(moves(project.inventory, split), before, after, new, left)


def _plan(project: Project, split: Split) -> Plan | None:
    try:
        return lowered_with(project, moved(project.inventory, split)).plan
    except FaultsError:
        return None


def _after(project: Project, inventory: Inventory) -> Plan:
    try:
        return lowered_of(project, inventory).plan
    except ProblemsError as error:
        raise InputError(
            f"this split is not made: the jobs do not fit the remaining GPUs:\n{error}",
            "nothing was written",
        ) from None


def _refuse_idle(before: State, after: State) -> None:
    names = made_idle(before, after)
    if names:
        raise InputError(
            f"this split is not made: it leaves {' and '.join(names)} without a GPU; "
            "nothing was written",
            "leave a GPU for inference, or leave every server idle with --infer 0",
        )


def _verify(path: Path, text: str, before: Document, split: Split) -> None:
    """Check that the edited text changes exactly the requested GPUs."""
    try:
        value = parse(text, str(path)).value
    except ProblemsError as error:
        reason = f"the result would be invalid:\n{error}"
    else:
        if changes_only(before.value, value, split):
            return
        reason = "other values would change, too"
    raise InputError(
        f"{path}: the split cannot be written into this text: {reason}",
        "nothing was written; make the change by hand, or write the list of GPUs more plainly",
    )
