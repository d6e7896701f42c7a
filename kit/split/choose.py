"""The choice of GPUs for inference when the user gives a number: the weakest that fit.

The same number always selects the same GPUs, unless the jobs need one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kit.errors import INVENTORY, Fault, FaultsError
from kit.model import Use
from kit.plan.gpus import capability
from kit.split.sections import Key, Slot, Split, count_of
from kit.values import count

MOST_TRIED = 100
"""Up to this number of GPUs, each is tried: a plan of a thousand hosts takes a tenth of a second,
and the hosts may have eight thousand GPUs."""


def weakest_first(slots: Sequence[Slot]) -> list[Slot]:
    """Sort GPUs by compute capability, then by memory.

    A GPU with an unknown value comes after those with a known one. Equal GPUs are sorted from the
    end of the inventory, so that training keeps the low indexes.
    """
    last_first = slots[::-1]
    return sorted(last_first, key=_strength)


def _strength(slot: Slot) -> tuple[bool, tuple[int, int], bool, int]:
    known = capability(slot.gpu.model or "")
    memory = slot.gpu.memory
    return known is None, known[1] if known else (0, 0), memory is None, memory or 0


def choose(
    slots: Sequence[Slot], named: Split, number: int, valid: Callable[[Split], bool]
) -> Split:
    """Choose the changes that leave `number` GPUs for inference.

    The GPUs in `named`, which the same command moves, and those for neither training nor inference
    are not changed. The strongest GPUs return to training first. If the weakest GPUs make the plan
    invalid, others are chosen.

    Raises:
        FaultsError: There are too few GPUs, or ranges of hosts prevent this number.
    """
    free = [slot for slot in slots if slot.key not in named and slot.gpu.use.splits]
    serving = [slot for slot in free if slot.gpu.use is Use.INFERENCE]
    most, present = count_of(free), count_of(serving)
    if number > most:
        others = count_of(slots) - most
        apart = (
            f" beside {count(others, 'GPU')} that this command does not change" if others else ""
        )
        only = f"there {'is' if most == 1 else 'are'} only {count(most, 'GPU')}"
        what = f"--infer {number}: {only}{apart}"
        raise FaultsError([Fault(INVENTORY, ("hosts",), what, f"write a number up to {most}")])
    if number >= present:
        use, ordered = Use.INFERENCE, weakest_first(_other(free, serving))
    else:
        use, ordered = Use.TRAINING, weakest_first(serving)[::-1]
    amount = abs(number - present)
    taken = _first_fit(ordered, amount)
    if taken is None:
        raise FaultsError([_no_fit(ordered, number, present, amount)])

    def _valid(some: Sequence[Slot]) -> bool:
        return valid({**named, **_all(some, use)})

    if amount and not _valid(taken):
        if len(ordered) <= MOST_TRIED:
            taken = _valid_fit(ordered, amount, _valid) or taken
        else:
            spread = _first_fit(_one_left(ordered), amount)
            taken = spread if spread and _valid(spread) else taken
    return _all(taken, use)


def _all(taken: Sequence[Slot], use: Use) -> dict[Key, Use]:
    return {slot.key: use for slot in taken}


def _one_left(ordered: Sequence[Slot]) -> list[Slot]:
    """Move the last GPU of each host to the end."""
    last = {slot.section: slot for slot in ordered}
    kept = [slot for slot in ordered if slot is last[slot.section]]
    return [slot for slot in ordered if slot is not last[slot.section]] + kept


def _other(slots: Sequence[Slot], without: Sequence[Slot]) -> list[Slot]:
    left_out = {slot.key for slot in without}
    return [slot for slot in slots if slot.key not in left_out]


def _sums(ordered: Sequence[Slot]) -> list[int]:
    """Return for each position the possible sums of it and all later ones, as bits."""
    sums = [1]
    for slot in reversed(ordered):
        sums.append(sums[-1] | sums[-1] << len(slot.hosts))
    return sums[::-1]


def _first_fit(ordered: Sequence[Slot], amount: int) -> list[Slot] | None:
    """Return the first slots with exactly `amount` GPUs; a slot of a range has several GPUs."""
    sums = _sums(ordered)
    taken: list[Slot] = []
    for position, slot in enumerate(ordered):
        rest = amount - len(slot.hosts)
        if rest >= 0 and sums[position + 1] >> rest & 1:
            taken.append(slot)
            amount = rest
    return None if amount else taken


def _valid_fit(
    ordered: Sequence[Slot], amount: int, valid: Callable[[Sequence[Slot]], bool]
) -> list[Slot] | None:
    """Return as `_first_fit`, without slots that make the plan invalid; None if nothing fits."""
    sums = _sums(ordered)
    taken: list[Slot] = []
    for position, slot in enumerate(ordered):
        rest = amount - len(slot.hosts)
        if rest >= 0 and sums[position + 1] >> rest & 1 and valid([*taken, slot]):
            taken.append(slot)
            amount = rest
    return None if amount else taken


def _no_fit(ordered: Sequence[Slot], number: int, present: int, amount: int) -> Fault:
    """Return a fault with the nearest possible numbers."""
    sign = 1 if number > present else -1
    possible = _sums(ordered)[0]
    nearby = sorted(present + sign * each for each in _nearest(possible, amount))
    largest = max(ordered, key=lambda slot: len(slot.hosts))
    what = (
        f"--infer {number}: {largest.name} are {count(len(largest.hosts), 'GPU')} that move "
        "together, as their hosts are a range"
    )
    words = " or ".join(str(each) for each in nearby)
    fix = f"write {words}, or describe the hosts one by one"
    return Fault(INVENTORY, largest.loc[:2], what, fix)


def _nearest(possible: int, amount: int) -> Iterator[int]:
    below = possible & ((1 << amount) - 1)
    yield below.bit_length() - 1
    above = possible >> amount
    if above:
        yield amount + (above & -above).bit_length() - 1
