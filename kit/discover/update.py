"""Write the discovered facts into the text of the inventory. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import yaml

from kit.discover.entries import gpu_entry, gpu_list, host_entry, scalar
from kit.discover.facts import HostFacts
from kit.discover.found import Found
from kit.discover.sound import sound
from kit.model import EngineName, Host, Use
from kit.values import count, meant_gpus, show_speed, speed
from kit.yamlfile import Document, parse

_BREAK = re.compile(r"\r\n|\n|\r|$")


@dataclass(frozen=True, slots=True)
class Update:
    """The new text, and notes on differences that the user has to resolve."""

    text: str
    notes: tuple[str, ...]


def engine_for(found: Sequence[Found]) -> EngineName:
    """Return the engine of a new inventory: Swarm for several hosts, unless one has only IPv6."""
    swarm = len(found) > 1 and not any(":" in each.address for each in found)
    return EngineName.SWARM if swarm else EngineName.COMPOSE


def new_inventory(cluster: str, engine: str, found: Sequence[Found]) -> Update:
    """Return a new inventory; its first host is the manager."""
    speeds = {each.speed for each in found}
    common = speeds.pop() if len(speeds) == 1 else None
    lines = [f"cluster: {scalar(cluster)}", f"engine: {engine}", "", "hosts:"]
    for number, each in enumerate(found):
        lines += _entry(each, manager=number == 0, speed=None if common else each.speed, column=2)
    if common:
        lines += ["", f"network: {{speed: {show_speed(common)}}}"]
    return Update("\n".join(lines) + "\n", ())


def updated(text: str, file: str, found: Sequence[Found]) -> Update:
    """Return the text of the inventory with the facts; comments and the order of keys stay.

    `text` is exactly what the file holds, carriage returns included.
    """
    # PyYAML's positions do not count a byte order mark.
    mark = text[: text.startswith("\ufeff")]
    plain = text.removeprefix(mark)
    made = _edited(plain, file, found)
    if not sound(plain, made.text, file, found):
        hopeless = [each for each in found if not _sound_alone(plain, file, each)]
        made = _edited(plain, file, [each for each in found if each not in hopeless])
        what = f"kit does not understand the form of {file} at this place; write it by hand"
        notes = [f"{each.name}: not written: {what}" for each in hopeless]
        made = Update(made.text, (*made.notes, *notes))
    return Update(mark + made.text, made.notes)


def _edited(text: str, file: str, found: Sequence[Found]) -> Update:
    editor = _Editor(text, parse(text, file))
    for each in found:
        editor.update(each)
    editor.append([each for each in found if each.known is None])
    return Update(editor.text(), tuple(editor.notes))


def _sound_alone(text: str, file: str, found: Found) -> bool:
    return sound(text, _edited(text, file, [found]).text, file, [found])


def _entry(each: Found, *, manager: bool, speed: int | None, column: int) -> list[str]:
    return host_entry(
        each.name,
        each.address,
        each.login,
        each.facts.gpus,
        manager=manager,
        speed=speed,
        column=column,
    )


@dataclass
class _Editor:
    """Collects edits of one text, at the positions of its nodes."""

    before: str
    document: Document
    notes: list[str] = field(default_factory=list)
    edits: list[tuple[int, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._newline = "\r\n" if "\r\n" in self.before else "\n"

    def text(self) -> str:
        """Return the text with all edits."""
        parts, end = [], 0
        for start, stop, new in sorted(self.edits):
            parts += [self.before[end:start], new]
            end = stop
        return "".join([*parts, self.before[end:]])

    def update(self, found: Found) -> None:
        """Add what a section lacks, and replace numbers and indexes of GPUs by UUIDs."""
        if found.known is None:
            return
        section = str(found.known.loc[1])
        if section != found.name:
            self._compare_range(found, section)
            return
        node = _value(_value(self.document.root, "hosts"), section)
        address = _value(node, "address")
        if not isinstance(node, yaml.MappingNode) or address is None or _written_twice(node):
            self.notes.append(f"{found.name}: its section uses an anchor or a merge: not changed")
            return
        self._update_gpus(found, node, address)
        self._update_speed(found, node, address)

    def _compare_range(self, found: Found, section: str) -> None:
        assert found.known
        planned, there = len(found.known.gpus), len(found.facts.gpus)
        if planned != there:
            told = f"{section} says {count(planned, 'GPU')}, {found.name} has {there}"
            self.notes.append(f"{told}: describe it by itself")

    def _update_speed(self, found: Found, node: yaml.MappingNode, address: yaml.Node) -> None:
        assert found.known
        if found.speed is None or found.speed == found.known.speed:
            return
        interface = found.facts.interface_of(found.address)
        where = f"{found.name}: {interface.name if interface else found.address}"
        if _value(node, "speed") is None:
            self._add(node, address, f"speed: {show_speed(found.speed)}")
        else:
            written = show_speed(found.known.speed)
            told = f"{where} has {show_speed(found.speed)}, the inventory says {written}"
            self.notes.append(f"{told}: that stays")

    def _update_gpus(self, found: Found, node: yaml.MappingNode, address: yaml.Node) -> None:
        assert found.known
        there = {gpu.uuid: gpu for gpu in found.facts.gpus}
        listed = _value(node, "gpus")
        if listed is None:
            if there:
                entries = [gpu_entry(gpu) for gpu in found.facts.gpus]
                column = None if node.flow_style else _column(node)
                space = " " if node.flow_style else ""
                value = gpu_list(entries, column, self._newline)
                self._add(node, address, f"gpus:{space}{value}")
        elif any(gpu.known for gpu in found.known.gpus):
            assert isinstance(listed, yaml.SequenceNode)
            written = self._complete_uuids(found, listed)
            new = [gpu for uuid, gpu in there.items() if uuid not in written]
            use = _use_of_new(found.known)
            self._add_gpus(listed, [gpu_entry(gpu, use) for gpu in new])
        else:
            self._replace_gpus(found, node, listed)

    def _complete_uuids(self, found: Found, listed: yaml.SequenceNode) -> set[str]:
        """Write UUIDs that are cut short in full; return the GPUs that the entries mean."""
        assert found.known
        means = {
            gpu.id: meant_gpus(gpu.id, [each.uuid for each in found.facts.gpus])
            for gpu in found.known.gpus
        }
        for node, (uuid, meant) in zip(listed.value, means.items(), strict=True):
            others = [each for each, its in means.items() if each != uuid and set(its) & set(meant)]
            if not meant:
                self.notes.append(f"{found.name}: {uuid} no longer exists")
            elif len(meant) > 1:
                said = f"{uuid} is the beginning of {' and '.join(meant)}"
                self.notes.append(f"{found.name}: {said}: write the one that you mean")
            elif len(uuid) < len(meant[0]) and others:
                said = f"{uuid} and {others[0]} are the same GPU"
                self.notes.append(f"{found.name}: {said}: take one of them out")
            elif len(uuid) < len(meant[0]):
                scalar = _value(node, "uuid")
                assert scalar is not None
                self.edits.append((scalar.start_mark.index, _end(scalar), meant[0]))
        return {each for meant in means.values() for each in meant}

    def _replace_gpus(self, found: Found, node: yaml.MappingNode, listed: yaml.Node) -> None:
        """Replace a number or indexes by UUIDs; each GPU keeps the `use` of its index."""
        assert found.known
        planned = len(found.known.gpus)
        if planned != found.facts.cards:
            said = f"{found.name}: the inventory says {count(planned, 'GPU')}"
            self.notes.append(f"{said}, nvidia-smi lists {found.facts.cards}")
        if not found.facts.gpus:
            return
        uses, other = {int(gpu.id): gpu.use for gpu in found.known.gpus}, _use_of_new(found.known)
        entries = [gpu_entry(gpu, uses.get(gpu.index, other)) for gpu in found.facts.gpus]
        start, end = listed.start_mark.index, _end(listed)
        if not node.flow_style and listed.start_mark.line == listed.end_mark.line:
            # The space after the colon is replaced as well.
            start = len(self.before[:start].rstrip(" "))
        if isinstance(listed, yaml.SequenceNode) and not listed.flow_style:
            lead = f"{self._newline}{' ' * listed.start_mark.column}"
            new = lead.join(f"- {entry}" for entry in entries)
        else:
            column = None if node.flow_style else _column(node)
            new = gpu_list(entries, column, self._newline)
        self.edits.append((start, end, new))

    def _add_gpus(self, listed: yaml.SequenceNode, entries: Sequence[str]) -> None:
        if not entries:
            return
        end = _end(listed.value[-1])
        if listed.flow_style:
            self.edits.append((end, end, "".join(f", {entry}" for entry in entries)))
            return
        lead = f"{self._newline}{' ' * listed.start_mark.column}- "
        at = self._line_end(end)
        self.edits.append((at, at, "".join(f"{lead}{entry}" for entry in entries)))

    def _add(self, node: yaml.MappingNode, behind: yaml.Node, pair: str) -> None:
        """Add a key after the given value of the mapping, which is on one line."""
        if node.flow_style:
            at = _end(behind)
            self.edits.append((at, at, f", {pair}"))
        else:
            at = self._line_end(_end(behind))
            self.edits.append((at, at, f"{self._newline}{' ' * _column(node)}{pair}"))

    def append(self, found: Sequence[Found]) -> None:
        """Add new hosts after the last one."""
        hosts = _value(self.document.root, "hosts")
        if not found or not isinstance(hosts, yaml.MappingNode):
            return
        default = self._default_speed()
        column = _column(hosts)
        lines = [
            line
            for each in found
            for line in _entry(
                each,
                manager=False,
                speed=each.speed if each.speed != default else None,
                column=column,
            )
        ]
        if hosts.flow_style:
            self.notes.append("`hosts` is a mapping in braces: add the new hosts by hand")
            return
        at = self._line_end(_end(hosts))
        self.edits.append((at, at, "".join(f"{self._newline}{line}" for line in lines)))

    def _default_speed(self) -> int:
        network = self.document.value.get("network") or {}
        return speed(network["speed"]) if "speed" in network else 10**9

    def _line_end(self, position: int) -> int:
        found = _BREAK.search(self.before, position)
        return found.start() if found else len(self.before)


def _use_of_new(host: Host) -> Use:
    """Return the use of a GPU that the inventory lacks: a spare is a whole host."""
    return Use.SPARE if any(gpu.use is Use.SPARE for gpu in host.gpus) else Use.TRAINING


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """Return a value of the mapping itself, not of one that it merges."""
    if not isinstance(node, yaml.MappingNode):
        return None
    pairs = ((each, value) for each, value in node.value if isinstance(each, yaml.ScalarNode))
    return next((value for each, value in pairs if each.value == key), None)


def _column(node: yaml.MappingNode) -> int:
    return int(node.value[0][0].start_mark.column)


def _end(node: yaml.Node) -> int:
    """Return the end of a node; PyYAML's end of a block is the start of the next token."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)


def _written_twice(node: yaml.MappingNode) -> bool:
    """Whether a value in the section of a host is an alias or merged."""
    for key, value in node.value:
        before = value.start_mark.index < key.start_mark.index
        if before or (isinstance(key, yaml.ScalarNode) and key.value == "<<"):
            return True
    return False


def shared_fast_network(found: Sequence[HostFacts]) -> str | None:
    """Return the IPv4 network of a second, fast link that all hosts share, or None."""
    if len(found) < 2:
        return None
    networks = [
        {str(address.network) for each in facts.fast for address in each.ipv4} for facts in found
    ]
    reached = {
        str(address.network)
        for facts in found
        for each in facts.interfaces
        for address in each.ipv4
        if str(address.ip) == facts.reached
    }
    shared = set.intersection(*networks) - reached
    return min(shared, default=None)
