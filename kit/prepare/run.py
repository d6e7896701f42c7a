"""Prepare hosts: look, change all but the engines, then restart these in a safe order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kit.errors import KitError
from kit.hosts.docker import Docker, on_each
from kit.model import Host
from kit.prepare import nodes, remote
from kit.prepare.order import Wave
from kit.prepare.remote import NeedsPasswordError, Task
from kit.prepare.report import Report, Status

Say = Callable[[str], object]


@dataclass
class Preparation:
    """The preparation of hosts by one command.

    `manager` returns a manager of the Swarm that answers. `passwords` are for sudo, by host.
    """

    task: Task
    manager: Callable[[], Docker]
    say: Say
    passwords: dict[str, str] = field(default_factory=dict)

    def look(self, hosts: Sequence[Host]) -> Mapping[str, Report | KitError]:
        """Return what the scripts would change."""
        return on_each(hosts, lambda host: self._script(host, ["--check"], silent=True))

    def change(self, hosts: Sequence[Host]) -> Mapping[str, Report | KitError]:
        """Change all but what needs a restart of Docker; return the reports.

        The status WAITS means that Docker must be restarted.
        """
        return on_each(hosts, lambda host: self._script(host, ["--no-restart"]))

    def restart(self, waves: Sequence[Wave]) -> None:
        """Restart the engines, wave by wave.

        Raises:
            KitError: A host did not come back; no later wave was begun.
        """
        for index, wave in enumerate(waves):
            results = on_each(wave, self._restart)
            errors = [result for result in results.values() if isinstance(result, KitError)]
            if errors:
                left = [host.name for later in waves[index + 1 :] for host in later]
                hint = "\n".join(filter(None, (error.hint for error in errors)))
                if left:
                    hint = f"{hint}\nnot restarted: {', '.join(left)}".strip()
                raise KitError("\n".join(error.message for error in errors), hint)

    def _restart(self, host: Host) -> None:
        node = nodes.node_of(host)
        if node is None:
            self._restart_engine(host)
            return
        manager = self.manager()
        try:
            self.say(f"{host.name}: drain it: its tasks end or move")
            drained = nodes.drain(manager, node)
            try:
                self._restart_engine(host)
            finally:
                if drained:
                    self._bring_back(manager, node)
        finally:
            manager.close()

    def _restart_engine(self, host: Host) -> None:
        report = self._script(host, ["--restart"])
        if report.status != Status.DONE:
            said = "; ".join(report.problems) or f"prepare.sh ended with {report.status}"
            raise KitError(f"{host.name}: {said}", f"look there: {host.ssh}")

    def _bring_back(self, manager: Docker, node: nodes.Node) -> None:
        try:
            nodes.wait_until_ready(manager, node)
            nodes.set_availability(manager, node, "active")
        except KitError as error:
            advice = f"when it is back: docker node update --availability active {node.id}"
            raise KitError(f"{error.message}; it is still drained", advice) from None
        self.say(f"{node.host.name}: active again")

    def _script(self, host: Host, options: Sequence[str], *, silent: bool = False) -> Report:
        def say(line: str) -> None:
            # What was right already was shown before.
            if not silent and not line.startswith(("ok ", "note ")):
                self.say(f"{host.name}: {line}")

        return remote.run(self.task, host, options, self.passwords.get(host.name, ""), say)


def without_password(found: Mapping[str, Report | KitError]) -> list[str]:
    """Return the hosts whose sudo asks for a password."""
    return [name for name, result in found.items() if isinstance(result, NeedsPasswordError)]
