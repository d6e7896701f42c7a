"""Write the discovered facts into the text of the inventory. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from kit.discover.cable import cable_of
from kit.discover.entries import gpu_entry, gpu_list, host_entry, scalar
from kit.discover.facts import DiscoveredHost
from kit.errors import ProblemsError
from kit.model import EngineName, Host, Use
from kit.platforms import ARCHITECTURES, of_kernel
from kit.values import count, meant_gpus, show_speed, speed
from kit.yamledit import (
    Editor,
    column_of,
    end_of,
    has_aliased_values,
    start_of,
    without_byte_order_mark,
)
from kit.yamlfile import Document, parse

FACTS = ("gpus", "speed", "architecture")
"""The keys of a host that are changed."""


@dataclass(frozen=True, slots=True)
class Update:
    """The new text, and notes on differences that the user has to resolve."""

    text: str
    notes: tuple[str, ...]


def engine_for(hosts: Sequence[DiscoveredHost]) -> EngineName:
    """Return the engine of a new inventory: Swarm for several hosts, unless one has only IPv6."""
    swarm = len(hosts) > 1 and not any(":" in host.address for host in hosts)
    return EngineName.SWARM if swarm else EngineName.COMPOSE


def new_inventory(cluster: str, engine: str, hosts: Sequence[DiscoveredHost]) -> Update:
    """Return a new inventory; its first host is the manager."""
    speeds = {host.speed for host in hosts}
    common = speeds.pop() if len(speeds) == 1 else None
    cable = cable_of([host.facts for host in hosts])
    lines = [f"cluster: {scalar(cluster)}", f"engine: {engine}", "", "hosts:"]
    for number, host in enumerate(hosts):
        lines += _entry(host, manager=number == 0, speed=None if common else host.speed, column=2)
    if cable and common:
        lines += ["", *cable.section()]
    elif common:
        lines += ["", f"network: {{speed: {show_speed(common)}}}"]
    return Update("\n".join(lines) + "\n", ())


def updated(text: str, file: str, hosts: Sequence[DiscoveredHost]) -> Update:
    """Return the text of the inventory with the facts; comments and the order of keys stay.

    `text` is exactly what the file holds, carriage returns included.
    """
    mark, plain = without_byte_order_mark(text)
    document = parse(plain, file)
    update = _edited(document, hosts)
    if not _changes_only_facts(document, update.text, hosts):
        failed = [
            host
            for host in hosts
            if not _changes_only_facts(document, _edited(document, [host]).text, [host])
        ]
        update = _edited(document, [host for host in hosts if host not in failed])
        what = f"kit does not understand the form of {file} at this place; write it by hand"
        notes = [f"{host.name}: not written: {what}" for host in failed]
        update = Update(update.text, (*update.notes, *notes))
    return Update(mark + update.text, update.notes)


def _edited(document: Document, hosts: Sequence[DiscoveredHost]) -> Update:
    editor = _HostsEditor(document)
    for host in hosts:
        editor.update(host)
    editor.append([host for host in hosts if host.known is None])
    return Update(editor.text(), tuple(editor.notes))


def _changes_only_facts(before: Document, after: str, hosts: Sequence[DiscoveredHost]) -> bool:
    """Whether an edited text differs only by facts of these hosts, and by new hosts."""
    try:
        new = parse(after, before.file).value
    except ProblemsError:
        return False
    known = {str(host.known.loc[1]) for host in hosts if host.known}
    added = {host.name for host in hosts if not host.known}
    return _without_facts(before.value, known, set()) == _without_facts(new, known, added)


def _without_facts(inventory: Any, known: set[str], added: set[str]) -> dict[str, Any]:
    hosts = {
        name: {key: value for key, value in host.items() if name not in known or key not in FACTS}
        for name, host in inventory["hosts"].items()
        if name not in added
    }
    return {**inventory, "hosts": hosts}


def _entry(host: DiscoveredHost, *, manager: bool, speed: int | None, column: int) -> list[str]:
    gpus = host.facts.gpus
    return host_entry(
        host.name,
        host.address,
        host.login,
        gpus,
        manager=manager,
        speed=speed,
        architecture=of_kernel(host.facts.architecture),
        column=column,
    )


class _HostsEditor:
    """Writes the facts of hosts into one text, and collects notes."""

    def __init__(self, document: Document) -> None:
        self.notes: list[str] = []
        self._document = document
        self._editor = Editor(document)
        self._hosts = self._editor.value(document.root, "hosts")

    def text(self) -> str:
        """Return the text with all edits."""
        return self._editor.edited()

    def update(self, host: DiscoveredHost) -> None:
        """Add what a section lacks, and replace numbers and indexes of GPUs by UUIDs."""
        if host.known is None:
            return
        section = str(host.known.loc[1])
        if section != host.name:
            self._compare_range(host, host.known, section)
            return
        node = self._editor.value(self._hosts, section)
        address = self._editor.value(node, "address")
        if not isinstance(node, yaml.MappingNode) or address is None or has_aliased_values(node):
            self.notes.append(f"{host.name}: its section uses an anchor or a merge: not changed")
            return
        self._update_gpus(host, host.known, node, address)
        self._update_speed(host, host.known, node, address)
        self._update_architecture(host, host.known, node, address)

    def _compare_range(self, host: DiscoveredHost, known: Host, section: str) -> None:
        planned, actual = len(known.gpus), len(host.facts.gpus)
        if planned != actual:
            difference = f"{section} says {count(planned, 'GPU')}, {host.name} has {actual}"
            self.notes.append(f"{difference}: describe it by itself")

    def _update_speed(
        self, host: DiscoveredHost, known: Host, node: yaml.MappingNode, address: yaml.Node
    ) -> None:
        if host.speed is None or host.speed == known.speed:
            return
        if self._editor.value(node, "speed") is None:
            self._add(node, address, f"speed: {show_speed(host.speed)}")
            return
        interface = host.facts.interface_of(host.address)
        where = f"{host.name}: {interface.name if interface else host.address}"
        written = show_speed(known.speed)
        difference = f"{where} has {show_speed(host.speed)}, the inventory says {written}"
        self.notes.append(f"{difference}: that stays")

    def _update_architecture(
        self, host: DiscoveredHost, known: Host, node: yaml.MappingNode, address: yaml.Node
    ) -> None:
        found, planned = of_kernel(host.facts.architecture), known.architecture
        if found == planned or found not in ARCHITECTURES:
            return
        if self._editor.value(node, "architecture") is None:
            self._add(node, address, f"architecture: {found}")
            return
        difference = f"{host.name}: its processor is {found}, the inventory says {planned}"
        self.notes.append(f"{difference}: correct `architecture`")

    def _update_gpus(
        self, host: DiscoveredHost, known: Host, node: yaml.MappingNode, address: yaml.Node
    ) -> None:
        gpus = {gpu.uuid: gpu for gpu in host.facts.gpus}
        listed = self._editor.value(node, "gpus")
        if listed is None:
            if gpus:
                entries = [gpu_entry(gpu) for gpu in gpus.values()]
                space = " " if node.flow_style else ""
                value = gpu_list(entries, *self._layout(node, end_of(address)))
                self._add(node, address, f"gpus:{space}{value}")
        elif any(gpu.known for gpu in known.gpus):
            assert isinstance(listed, yaml.SequenceNode)
            written = self._complete_uuids(host, known, listed)
            new = [gpu for uuid, gpu in gpus.items() if uuid not in written]
            use = _use_of_new(known)
            self._add_gpus(listed, [gpu_entry(gpu, use) for gpu in new])
        else:
            self._replace_gpus(host, known, node, listed)

    def _complete_uuids(
        self, host: DiscoveredHost, known: Host, listed: yaml.SequenceNode
    ) -> set[str]:
        """Write UUIDs that are cut short in full; return the GPUs that the entries mean."""
        means = {
            gpu.id: meant_gpus(gpu.id, [each.uuid for each in host.facts.gpus])
            for gpu in known.gpus
        }
        for node, (uuid, meant) in zip(listed.value, means.items(), strict=True):
            others = [each for each, its in means.items() if each != uuid and set(its) & set(meant)]
            if not meant:
                self.notes.append(f"{host.name}: {uuid} no longer exists")
            elif len(meant) > 1:
                fault = f"{uuid} is the beginning of {' and '.join(meant)}"
                self.notes.append(f"{host.name}: {fault}: write the one that you mean")
            elif len(uuid) < len(meant[0]) and others:
                fault = f"{uuid} and {others[0]} are the same GPU"
                self.notes.append(f"{host.name}: {fault}: take one of them out")
            elif len(uuid) < len(meant[0]):
                value = self._editor.value(node, "uuid")
                assert value is not None
                self._editor.replace(start_of(value), end_of(value), meant[0])
        return {each for meant in means.values() for each in meant}

    def _replace_gpus(
        self, host: DiscoveredHost, known: Host, node: yaml.MappingNode, listed: yaml.Node
    ) -> None:
        """Replace a number or indexes by UUIDs; each GPU keeps the `use` of its index."""
        planned = len(known.gpus)
        if planned != host.facts.cards:
            difference = f"{host.name}: the inventory says {count(planned, 'GPU')}"
            self.notes.append(f"{difference}, nvidia-smi lists {host.facts.cards}")
        if not host.facts.gpus:
            return
        uses, other = {int(gpu.id): gpu.use for gpu in known.gpus}, _use_of_new(known)
        entries = [gpu_entry(gpu, uses.get(gpu.index, other)) for gpu in host.facts.gpus]
        start, end = start_of(listed), end_of(listed)
        if not node.flow_style and listed.start_mark.line == listed.end_mark.line:
            # The space after the colon is replaced as well.
            start = len(self._editor.text[:start].rstrip(" "))
        if isinstance(listed, yaml.SequenceNode) and not listed.flow_style:
            lead = f"{self._editor.newline(end)}{' ' * listed.start_mark.column}"
            new = lead.join(f"- {entry}" for entry in entries)
        else:
            new = gpu_list(entries, *self._layout(node, end))
        self._editor.replace(start, end, new)

    def _layout(self, node: yaml.MappingNode, position: int) -> tuple[int | None, str]:
        """Return the column for a list in a mapping, None in braces, and the line break."""
        column = None if node.flow_style else column_of(node)
        return column, self._editor.newline(position)

    def _add_gpus(self, listed: yaml.SequenceNode, entries: Sequence[str]) -> None:
        if not entries:
            return
        end = end_of(listed.value[-1])
        if listed.flow_style:
            self._editor.insert(end, "".join(f", {entry}" for entry in entries))
            return
        lead = f"{self._editor.newline(end)}{' ' * listed.start_mark.column}- "
        self._editor.insert(
            self._editor.line_end(end), "".join(f"{lead}{entry}" for entry in entries)
        )

    def _add(self, node: yaml.MappingNode, behind: yaml.Node, pair: str) -> None:
        """Add a key after the given value of the mapping, which is on one line."""
        end = end_of(behind)
        if node.flow_style:
            self._editor.insert(end, f", {pair}")
        else:
            new = f"{self._editor.newline(end)}{' ' * column_of(node)}{pair}"
            self._editor.insert(self._editor.line_end(end), new)

    def append(self, hosts: Sequence[DiscoveredHost]) -> None:
        """Add new hosts after the last one."""
        node = self._hosts
        if not hosts or not isinstance(node, yaml.MappingNode):
            return
        if node.flow_style:
            self.notes.append("`hosts` is a mapping in braces: add the new hosts by hand")
            return
        default, column, end = self._default_speed(), column_of(node), end_of(node)
        lines: list[str] = []
        for host in hosts:
            speed = host.speed if host.speed != default else None
            lines += _entry(host, manager=False, speed=speed, column=column)
        newline = self._editor.newline(end)
        self._editor.insert(
            self._editor.line_end(end), "".join(f"{newline}{line}" for line in lines)
        )

    def _default_speed(self) -> int:
        network = self._document.value.get("network") or {}
        return speed(network["speed"]) if "speed" in network else 10**9


def _use_of_new(host: Host) -> Use:
    """Return the use of a GPU that the inventory lacks: a spare is a whole host."""
    return Use.SPARE if any(gpu.use is Use.SPARE for gpu in host.gpus) else Use.TRAINING
