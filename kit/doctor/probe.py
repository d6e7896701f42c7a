"""Ask the hosts: one SSH login each, in parallel."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from kit.addresses import registry_host, split_endpoint
from kit.discover.ask import Answer, Login, ask_with, extended
from kit.doctor.facts import Report, Wanted, WantedHost
from kit.doctor.parse import read_vitals
from kit.errors import KitError
from kit.values import Say

VITALS = Path(__file__).with_name("vitals.sh")
QUICK = frozenset(
    {"host", "gpus", "gpu-query", "docker", "docker-info", "toolkit", "paths", "clock", "end"}
    | {"docker-program"}
)
"""The sections that `kit deploy` waits for."""
CONNECT = 5
"""Seconds that `kit deploy` waits for a connection: a loaded host takes seconds for its keys."""
STARTED = "printf '@@ began\\n'; date +%s.%N\n"
"""The first section: the time before all others."""
FOLDERS = """\
section paths
for path in $paths; do [ -e "$path" ] || echo "missing $path"; done
"""
NOBODY = "kit-doctor.invalid"
"""A name that does not exist (RFC 2606): a silent name server stalls its look-up too."""


def ask_all(wanted: Wanted, done: Say = lambda _: None) -> dict[str, Report | KitError]:
    """Return the report of each host, or the error that prevented it."""
    hosts = wanted.hosts
    registries = {_registry(image) for image in wanted.images} - {""}
    lists = {
        "images": wanted.images,
        "paths": _folders(wanted),
        "names": [*sorted(registries), NOBODY],
    }
    head = "".join(f"{name}={shlex.quote(' '.join(words))}\n" for name, words in lists.items())
    script = extended(VITALS.read_text(encoding="utf-8"))
    return _ask(hosts, f"{head}{STARTED}{script}", done)


def ask_quickly(wanted: Wanted) -> dict[str, Report | KitError]:
    """Return the reports of a few commands on each host."""
    head = f"paths={shlex.quote(' '.join(_folders(wanted)))}\n{STARTED}"
    script = sections(extended(FOLDERS), QUICK)
    return _ask(wanted.hosts, head + script, connect=CONNECT)


def _folders(wanted: Wanted) -> list[str]:
    return sorted({folder for host in wanted.hosts for use in host.uses for folder in use.folders})


def sections(script: str, names: Iterable[str]) -> str:
    """Return a script with only some of its sections."""
    head, *parts = re.split(r"^(?=section )", script, flags=re.MULTILINE)
    wanted = set(names)
    return head + "".join(part for part in parts if part.split(maxsplit=2)[1] in wanted)


def _registry(image: str) -> str:
    """Return the host of an image's registry if it is named; Docker Hub has no name."""
    return split_endpoint(registry_host(image))[0]


def _ask(
    hosts: Sequence[WantedHost],
    script: str,
    done: Say = lambda _: None,
    connect: int | None = None,
) -> dict[str, Report | KitError]:
    logins = [Login(host.name, host.host.ssh) for host in hosts]
    answers = ask_with(logins, script, lambda login: done(login.name), connect)
    return {login.name: _report(login.name, answer) for login, answer in answers.items()}


def _report(name: str, answer: Answer | KitError) -> Report | KitError:
    if isinstance(answer, KitError):
        return answer
    vitals = read_vitals(answer.printed)
    # The script ran during the call: only times outside of the call are errors of the clock.
    error = max(vitals.clock - answer.ended, 0.0) or min(vitals.began - answer.began, 0.0)
    if not vitals.began:
        error = 0.0
    login = answer.ended - answer.began - (vitals.clock - vitals.began)
    return Report(name, answer.facts, vitals, max(login, 0.0), error)
