"""Run the probe on the hosts, with one SSH login each, in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from kit.addresses import ssh_words
from kit.discover.facts import HostFacts
from kit.discover.parse import clock_of, read_facts
from kit.errors import KitError
from kit.hosts import ssh
from kit.model import Host

PROBE = Path(__file__).with_name("probe.sh")
LAST = "# Last, as the commands above take time.\n"
"""The line of the probe before its last sections."""
AT_ONCE = 64
"""SSH clients that run at the same time; each mostly waits."""


@dataclass(frozen=True, slots=True)
class Login:
    """The SSH login of a host; messages show `name`."""

    name: str
    ssh: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The output of the probe. `began` and `ended` are times here, in seconds since the epoch."""

    facts: HostFacts
    printed: str
    began: float
    ended: float


def ask(logins: Sequence[Login]) -> Mapping[Login, HostFacts | KitError]:
    """Return the facts of each host, or the error that prevented them."""
    answers = ask_with(logins, PROBE.read_text(encoding="utf-8"))
    return {
        login: answer.facts if isinstance(answer, Answer) else answer
        for login, answer in answers.items()
    }


def extended(more: str) -> str:
    """Return the probe with more sections before its last ones."""
    before, mark, last = PROBE.read_text(encoding="utf-8").partition(LAST)
    assert mark
    return f"{before}{more}{mark}{last}"


def ask_with(
    logins: Sequence[Login],
    script: str,
    done: Callable[[Login], object] = lambda _: None,
    connect: int | None = None,
) -> Mapping[Login, Answer | KitError]:
    """Run a script that has the probe's sections on all hosts.

    `done` is called for each host that has answered or failed. `connect` are the seconds to wait
    for a connection.
    """

    def one(login: Login) -> Answer | KitError:
        answer = _ask(login, script, connect)
        done(login)
        return answer

    with ThreadPoolExecutor(min(AT_ONCE, len(logins)) or 1) as pool:
        return dict(zip(logins, pool.map(one, logins), strict=True))


def _ask(login: Login, script: str, connect: int | None) -> Answer | KitError:
    host = Host(login.name, "", login.ssh, (), (), None, 0, ())
    began = time.time()
    try:
        printed = ssh.run(host, script, connect=connect)
        ended = time.time()
        facts = read_facts(printed)
    except KitError as error:
        return error
    except ValueError as error:
        return KitError(
            f"{login.name}: {error}", f"try `{ssh_words(login.ssh)} true`: does it print?"
        )
    clock = clock_of(printed)
    if clock is not None:
        facts = replace(facts, clock_offset=clock - ended)
    return Answer(facts, printed, began, ended)
