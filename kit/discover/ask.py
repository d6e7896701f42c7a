"""Run the probe on the hosts, with one SSH login each, in parallel."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from kit.discover.facts import HostFacts
from kit.discover.parse import clock_of, read_facts
from kit.errors import KitError
from kit.hosts import ssh
from kit.model import Host

PROBE = Path(__file__).with_name("probe.sh")
AT_ONCE = 64
"""SSH clients that run at the same time; each mostly waits."""


@dataclass(frozen=True, slots=True)
class Login:
    """The SSH login of a host; messages show `name`."""

    name: str
    ssh: str


def ask(logins: Sequence[Login]) -> Mapping[Login, HostFacts | KitError]:
    """Return the facts of each host, or the error that prevented them."""
    script = PROBE.read_text(encoding="utf-8")
    with ThreadPoolExecutor(min(AT_ONCE, len(logins)) or 1) as pool:
        answers = pool.map(lambda login: _ask(login, script), logins)
        return dict(zip(logins, answers, strict=True))


def _ask(login: Login, script: str) -> HostFacts | KitError:
    host = Host(login.name, "", login.ssh, (), (), None, 0, ())
    try:
        printed = ssh.run(host, script)
        ended = time.time()
        facts = read_facts(printed)
    except KitError as error:
        return error
    except ValueError as error:
        return KitError(f"{login.name}: {error}", f"try `ssh {login.ssh} true`: does it print?")
    clock = clock_of(printed)
    return facts if clock is None else replace(facts, clock_offset=clock - ended)
