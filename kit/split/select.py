"""The selectors of GPUs, and the errors for wrong ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kit import ranges
from kit.errors import INVENTORY, Fault, FaultsError, Loc
from kit.model import Inventory, Use
from kit.split.choose import choose
from kit.split.sections import HostsSection, Key, Slot, Split, sections
from kit.values import count
from trainer.contract.words import nearest

EVERY = "all"
MOST_CANDIDATES = 8
_POSITIONS = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*")
_NUMBER = re.compile(r"[0-9]{1,9}")
_UUID = re.compile(r"(GPU|MIG)-|[0-9a-f]{8}-[0-9a-f]{4}-", re.IGNORECASE)
_HOSTS: Loc = ("hosts",)


@dataclass(frozen=True, slots=True)
class Selectors:
    """The selectors of each use; `infer` may be a number of GPUs."""

    infer: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    none: tuple[str, ...] = ()

    def number(self) -> int | None:
        """Return the number of GPUs for inference, or None if GPUs are named."""
        return next((int(text) for text in self.infer if _NUMBER.fullmatch(text)), None)


_OPTIONS = (
    ("infer", Use.INFERENCE),
    ("train", Use.TRAINING),
    ("spare", Use.SPARE),
    ("none", Use.NONE),
)


def select(inventory: Inventory, selectors: Selectors, valid: Callable[[Split], bool]) -> Split:
    """Return the GPUs that change, with their new uses.

    `valid` checks a split. It is called only for a number of GPUs, which leaves a choice.

    Raises:
        FaultsError: A selector matches nothing, is ambiguous, or contradicts another.
    """
    finder = _Finder(sections(inventory))
    named: dict[Key, tuple[str, Use, Slot]] = {}
    faults = _number_faults(selectors)
    for option, use in _OPTIONS:
        for text in getattr(selectors, option):
            if _NUMBER.fullmatch(text):
                continue
            option_text = f"--{option} {text}"
            try:
                selected = finder.find(text, option_text, moving_to=use)
            except FaultsError as error:
                faults += error.faults
                continue
            for slot in selected:
                before, other, _ = named.setdefault(slot.key, (option_text, use, slot))
                if other is not use:
                    what = f"{before} and {option_text} both select {slot.name}"
                    faults.append(Fault(INVENTORY, slot.loc, what, "keep one of the two"))
    if faults:
        raise FaultsError(faults)
    split: dict[Key, Use] = {key: use for key, (_, use, _) in named.items()}
    number = selectors.number()
    if number is not None:
        every = [slot for section in finder.sections for slot in section.slots]
        split |= choose(every, split, number, valid)
    uses = {slot.key: slot.gpu.use for section in finder.sections for slot in section.slots}
    return {key: use for key, use in split.items() if uses[key] is not use}


def _number_faults(selectors: Selectors) -> list[Fault]:
    faults = []
    for option in ("train", "spare", "none"):
        for text in getattr(selectors, option):
            if _NUMBER.fullmatch(text):
                what = f"--{option} {text}: only --infer takes a number of GPUs"
                fix = "write --infer N for the number of GPUs for inference, or name the GPUs"
                faults.append(Fault(INVENTORY, _HOSTS, what, fix))
    if selectors.number() is not None and len(selectors.infer) > 1:
        what = f"--infer {' --infer '.join(selectors.infer)}: a number means all GPUs for inference"
        faults.append(Fault(INVENTORY, _HOSTS, what, "write the number alone, or name the GPUs"))
    return faults


@dataclass(frozen=True, slots=True)
class _Pool:
    """The GPUs to search, their place in the inventory, and the start of a message about them."""

    slots: tuple[Slot, ...]
    loc: Loc
    where: str


class _Finder:
    """Finds GPUs by the selectors of the command line."""

    def __init__(self, hosts_sections: Sequence[HostsSection]) -> None:
        self.sections = hosts_sections
        self._names = {section.name: section for section in hosts_sections}
        self._by_host = {host: section for section in hosts_sections for host in section.hosts}

    def find(self, text: str, option_text: str, *, moving_to: Use) -> list[Slot]:
        """Return the GPUs of a selector.

        The name of a host or a model selects the GPUs for training and inference. Spares and GPUs
        with `use: none` must be selected by index or UUID.
        """
        head, colon, which = text.partition(":")
        if text in self._names or text in self._by_host:
            colon, which = ":", EVERY
        if colon:
            pool = self._pool(self._section(head, option_text), option_text)
            if _POSITIONS.fullmatch(which):
                return _at(pool, which, option_text)
        else:
            which = text
            pool = _Pool(
                tuple(slot for section in self.sections for slot in section.slots),
                _HOSTS,
                "there is",
            )
        if _UUID.match(which):
            return [_by_uuid(pool, which, option_text)]
        selected = list(pool.slots) if which == EVERY else self._by_model(pool, which, option_text)
        if not selected:
            raise _wrong(pool.loc, f"{option_text}: no host has a GPU", "give a host `gpus:`")
        if moving_to is Use.NONE:
            return selected
        usable = [slot for slot in selected if slot.gpu.use.splits]
        if not usable:
            uses = " and ".join(sorted({f"`use: {slot.gpu.use}`" for slot in selected}))
            what = f"{option_text}: a split does not move {_list(selected)} ({uses})"
            raise _wrong(pool.loc, what, f"name one by its index, as in {selected[0].name}")
        return usable

    def _pool(self, section: HostsSection, option_text: str) -> _Pool:
        loc = ("hosts", section.name)
        if not section.slots:
            raise _wrong(loc, f"{option_text}: {section.name} has no GPU", "name another host")
        return _Pool(section.slots, loc, f"{section.name} has")

    def _section(self, name: str, option_text: str) -> HostsSection:
        if name in self._names:
            return self._names[name]
        section = self._by_host.get(name)
        if section is None:
            hint = nearest(name, [*self._names, *list(self._by_host)[:1000]])
            raise _wrong(_HOSTS, f"{option_text}: there is no host {name}", hint)
        if len(section.hosts) > 1:
            what = (
                f"{option_text}: {name} is one of {count(len(section.hosts), 'host')} that share a "
                "list of GPUs"
            )
            fix = (
                f"write '{section.name}' for all of them, or take {name} out of the range "
                f"and describe it beside: {_beside(section, name)}"
            )
            raise _wrong(("hosts", section.name), what, fix)
        return section

    def _by_model(self, pool: _Pool, text: str, option_text: str) -> list[Slot]:
        models: dict[str, list[Slot]] = {}
        for slot in pool.slots:
            if slot.gpu.model is not None:
                models.setdefault(slot.gpu.model.lower(), []).append(slot)
        word = text.lower()
        if word in models:
            return models[word]
        matches = [name for name in models if word and word in name]
        if len(matches) == 1:
            return models[matches[0]]
        shown = [str(slots[0].gpu.model) for slots in models.values()]
        if matches:
            several = [str(models[name][0].gpu.model) for name in matches]
            what = f"{option_text} matches {' and '.join(several)}"
            raise _wrong(pool.loc, what, "write more of the name")
        if pool.loc == _HOSTS:
            known = [*self._names, *shown]
            what = f"{option_text}: {text!r} is not a host, a UUID or a model of a GPU"
            raise _wrong(pool.loc, what, nearest(text, known))
        hint = nearest(text, shown) if shown else "name a GPU by its index, from 0 on"
        raise _wrong(pool.loc, f"{option_text}: {pool.where} no GPU of that model", hint)


def _at(pool: _Pool, which: str, option_text: str) -> list[Slot]:
    selected: list[Slot] = []
    for part in which.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high or high >= len(pool.slots):
            what = f"{option_text}: {pool.where} {count(len(pool.slots), 'GPU')}"
            most = len(pool.slots) - 1
            fix = f"write an index from 0 to {most}" if most else "write index 0"
            raise _wrong((*pool.loc, "gpus"), what, fix)
        selected += pool.slots[low : high + 1]
    return selected


def _by_uuid(pool: _Pool, text: str, option_text: str) -> Slot:
    word = text.lower().removesuffix("…")
    matches = [slot for slot in pool.slots if slot.gpu.id.lower().startswith(word)]
    exact = [slot for slot in matches if slot.gpu.id.lower() == word]
    if exact or len(matches) == 1:
        return (exact or matches)[0]
    if matches:
        what = f"{option_text} matches {_list(matches, ids=True)}"
        raise _wrong(pool.loc, what, "write more of the UUID")
    known = [slot.gpu.id for slot in pool.slots if slot.gpu.known]
    hint = nearest(text, known) if known else "name the GPU by its index, from 0 on"
    raise _wrong(pool.loc, f"{option_text}: {pool.where} no GPU with that UUID", hint)


def _list(entries: Sequence[Slot], *, ids: bool = False) -> str:
    names = [f"{slot.name} ({slot.gpu.id})" if ids else slot.name for slot in entries]
    more = len(names) - MOST_CANDIDATES
    return ", ".join(names[:MOST_CANDIDATES]) + (f" and {more} more" if more > 0 else "")


def _beside(section: HostsSection, host: str) -> str:
    """Return a range without one of its hosts: `gpu[001-002]`, gpu003 and `gpu[004-064]`."""
    position = section.hosts.index(host)
    head, first, last, tail = ranges.parts(section.name)
    low, high = int(first), int(last)
    number = low + position

    def _name(number: int) -> str:
        return section.hosts[number - low][len(head) : len(section.hosts[number - low]) - len(tail)]

    def _names() -> Iterator[str]:
        for start, end in ((low, number - 1), (number, number), (number + 1, high)):
            if start == end:
                yield f"`{section.hosts[start - low]}:`"
            elif start < end:
                yield f'`"{head}[{_name(start)}-{_name(end)}]{tail}":`'

    *some, one = _names()
    return f"{', '.join(some)} and {one}" if some else one


def _wrong(loc: Loc, what: str, fix: str) -> FaultsError:
    return FaultsError([Fault(INVENTORY, loc, what, fix)])
