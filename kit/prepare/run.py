"""Prepare hosts: look, change all but the engines, then restart these in a safe order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kit.addresses import ssh_words
from kit.errors import KitError, joined
from kit.hosts.docker import Docker, on_each
from kit.model import Host
from kit.prepare import nodes, remote
from kit.prepare.order import Wave
from kit.prepare.remote import NeedsPasswordError, Task
from kit.prepare.report import Report, Status
from kit.values import Say


@dataclass
class Preparation:
    """The preparation of hosts by one command.

    `manager` returns a manager of the Swarm that answers. `settle` returns when the jobs run again
    as before, or raises a KitError. `passwords` are for sudo, by host.
    """

    task: Task
    manager: Callable[[], Docker]
    say: Say
    settle: Callable[[], object] = lambda: None
    passwords: dict[str, str] = field(default_factory=dict)
    _members: set[str] = field(default_factory=set)

    def look(self, hosts: Sequence[Host]) -> Mapping[str, Report | KitError]:
        """Return what the scripts would change."""
        return on_each(hosts, lambda host: self._script(host, ["--check"], silent=True))

    def change(self, hosts: Sequence[Host]) -> Mapping[str, Report | KitError]:
        """Make all changes that need no restart of Docker; return the reports.

        The status WAITS means that Docker must be restarted.
        """
        reports = on_each(hosts, lambda host: self._script(host, ["--no-restart"]))
        restarts = {
            name: each.restart for name, each in reports.items() if isinstance(each, Report)
        }
        self._members = {name for name, each in restarts.items() if each and each.swarm}
        return reports

    def restart(self, waves: Sequence[Wave]) -> None:
        """Restart the engines, wave by wave.

        Raises:
            KitError: A host did not come back; no later wave was begun.
        """
        for index, wave in enumerate(waves):
            if index:
                self.settle()
            in_swarm = any(host.name in self._members for host in wave)
            try:
                before = self._ready_nodes() if in_swarm else {}
                results = on_each(wave, self._restart)
                errors = [each for each in results.values() if isinstance(each, KitError)]
                if errors:
                    raise joined(errors)
                if in_swarm:
                    self._await_nodes(before)
            except KitError as error:
                left = [host.name for later in waves[index + 1 :] for host in later]
                hint = f"{error.hint}\nnot restarted: {', '.join(left)}" if left else error.hint
                raise KitError(error.message, hint.strip()) from None

    def _ready_nodes(self) -> Mapping[str, str]:
        manager = self.manager()
        try:
            return nodes.ready_nodes(manager)
        finally:
            manager.close()

    def _await_nodes(self, before: Mapping[str, str]) -> None:
        """Wait for the nodes: while the only manager restarts, all others are lost for a moment."""
        manager = self.manager()
        try:
            nodes.wait_until_ready(manager, before, nodes.RETURN)
        finally:
            manager.close()

    def _restart(self, host: Host) -> None:
        """Restart an engine; a node of the Swarm is drained before, and active again after."""
        if host.name not in self._members:
            self._restart_engine(host)
            return
        node = nodes.node_of(host)
        manager = self.manager()
        try:
            self.say(f"{host.name}: drain it: its tasks end or move")
            drained = nodes.drain(manager, node)
            failure, patience = None, nodes.RETURN
            try:
                self._restart_engine(host)
                if nodes.is_missed(manager, node):
                    self.say(f"{host.name}: the manager has missed its return: restart it again")
                    self._restart_engine(host, "--restart-anyway")
            except KitError as error:
                # Its old configuration may have brought it back.
                failure, patience = error, nodes.LOST
            try:
                if failure is not None:
                    # A manager calls a dead engine ready until it misses its heartbeats.
                    nodes.node_of(host)
                nodes.wait_until_ready(manager, {node.id: host.name}, patience)
                if drained:
                    nodes.set_availability(manager, node, "active")
                    self.say(f"{host.name}: active again")
            except KitError as error:
                raise _explained(failure or error, node, drained=drained) from None
            if failure is not None:
                raise failure
        finally:
            manager.close()

    def _restart_engine(self, host: Host, option: str = "--restart") -> None:
        report = self._script(host, [option])
        if report.status != Status.DONE:
            reason = "; ".join(report.problems) or f"prepare.sh ended with {report.status}"
            raise KitError(f"{host.name}: {reason}", f"look there: {ssh_words(host.ssh)}")

    def _script(self, host: Host, options: Sequence[str], *, silent: bool = False) -> Report:
        def say(line: str) -> None:
            # Correct settings were shown before. kit itself makes the restarts that wait.
            if not silent and not line.startswith(("ok ", "note ", "waits ")):
                self.say(f"{host.name}: {line}")

        return remote.run(self.task, host, options, self.passwords.get(host.name, ""), say)


def _explained(error: KitError, node: nodes.Node, *, drained: bool) -> KitError:
    """Return the error with the command that makes the node active later."""
    if not drained:
        return error
    command = f"docker node update --availability active {node.id}"
    hint = f"{node.host.name} is drained; when it is back, on a manager: {command}"
    return KitError(error.message, f"{error.hint}\n{hint}".strip())


def without_password(reports: Mapping[str, Report | KitError]) -> list[str]:
    """Return the hosts whose sudo asks for a password."""
    return [name for name, result in reports.items() if isinstance(result, NeedsPasswordError)]
