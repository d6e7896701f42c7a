"""Makes one fault during the training, watches what happens, and measures it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.lab.chaos.faults import Fault
from tests.lab.chaos.steps import Taken, lost, since
from tests.lab.chaos.world import JOB, MANAGER, NODES, Said, World, told_job

NOTICES = (
    "is silent for",
    "has closed its connection",
    "aborts group ",
    "does not answer",
    "it is restarted",
    "was stopped by a signal",
    "stops the job on all hosts: ",
)
"""What agents and the coordinator say when the training has lost a part."""
EPOCH = 23
"""Steps of an epoch with two nodes, the most that a checkpoint after each epoch is behind."""
SETTLED = 60.0
"""Seconds after the training is whole in which kit must know that too."""


@dataclass(frozen=True)
class Outcome:
    """What a fault has caused; `detected` is None if nobody has said anything.

    `detected` and `again` are in seconds since the fault.
    """

    fault: str
    what: str
    node: str
    detected: float | None
    again: float
    lost: int
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Look:
    """What `kit status --json` has printed."""

    began: float
    ended: float
    code: int
    output: str

    @property
    def job(self) -> dict[str, Any]:
        return told_job(self.output)


class Looker:
    """Asks for the status again and again, as an operator would during a fault."""

    def __init__(self, world: World) -> None:
        self.looks: list[Look] = []
        self._world = world
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Looker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            process = self._world.operator.start("status", "--json")
            try:
                output, _ = process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
            self.looks.append(Look(began, time.monotonic(), process.returncode, output))
            self._over.wait(2)


def make(world: World, fault: Fault) -> Outcome:
    """Make a fault and undo it, and wait until all nodes train again.

    Raises ViolatedError if they do not.
    """
    world.wait_until_whole(time.monotonic(), f"before {fault.what}")
    node = fault.node(world)
    if fault.before:
        fault.before(world, node)
        world.wait_until_whole(time.monotonic(), f"prepared for {fault.what}")
    time.sleep(world.draw.uniform(0, 3))
    before = world.newest()
    known = len(lost(world.steps()))
    began = time.monotonic()
    with Looker(world) as looker:
        fault.make(world, node)
        time.sleep(max(0.0, began + fault.lasts - time.monotonic()))
        mended = time.monotonic()
        if fault.mend:
            fault.mend(world, node)
        time.sleep(max(0.0, began + 2 - time.monotonic()))  # Until the loss was noticed.
        world.wait_until_whole(time.monotonic(), f"after {fault.what} on {node}")
    steps, said = world.steps(), world.said(began)
    detected = noticed(said, began) if fault.noticed else None
    again = steps_again(steps, before.generation, began)
    taken_twice = len(lost(steps)) - known
    wrong = [
        *judge(fault, node, [each for each in looker.looks if each.ended > began], mended),
        *unknown(world),
    ]
    if fault.after:
        fault.after(world, node)
    if fault.noticed and detected is None:
        wrong.append("nobody has said that the training lost a part")
    if taken_twice > (EPOCH if fault.forgets else 0):
        wrong.append(f"{taken_twice} committed steps were taken twice")
    found = tuple(f"{fault.name}: {each}" for each in wrong)
    return Outcome(fault.name, fault.what, node, detected, again, taken_twice, found)


def noticed(said: Sequence[Said], began: float) -> float | None:
    """Seconds from a fault to the first line that tells of a loss."""
    told = (line.time for line in said if any(notice in line.text for notice in NOTICES))
    first = min((at for at in told if at > began), default=None)
    return None if first is None else first - began


def steps_again(steps: Sequence[Taken], generation: int, began: float) -> float:
    """Seconds from a fault to the first step after it, of another group if there was one."""
    later = since(steps, began)
    regrouped = [each for each in later if each.generation != generation]
    return (regrouped or later)[0].time - began


def judge(fault: Fault, node: str, looks: Sequence[Look], mended: float) -> list[str]:
    """Return what `kit status` has told wrongly while a fault lasted."""
    wrong = [each for look in looks if (each := lie(fault, look))]
    during = [look for look in looks if look.ended < mended + 1]
    if fault.named and not any(names(look, node) for look in during):
        wrong.append(f"kit status has not named {node} while it was away")
    if not any(fault.tells in look.output for look in looks):
        wrong.append(f"kit status has not told of {fault.tells!r}")
    return wrong


def lie(fault: Fault, look: Look) -> str:
    """Return what is wrong with one answer of `kit status`; "" if nothing is."""
    if "Traceback" in look.output:
        return f"kit status failed: {look.output[-300:]}"
    if look.code and fault.unreachable:
        return "" if MANAGER in look.output else f"kit status does not name {MANAGER}"
    if look.code:
        return f"kit status ended with {look.code}: {look.output.strip()[-300:]}"
    state = look.job.get("state", "")
    return (
        ""
        if state in fault.states | {"running"}
        else f"kit status told {state!r} of a training that goes on"
    )


def names(look: Look, node: str) -> bool:
    """Whether an answer tells that a node's part does not run."""
    hosts = {host["host"]: host for host in look.job.get("hosts", [])}
    part = hosts.get(node, {})
    return bool(part.get("message")) and f"{node}: " in look.job["message"]


def unknown(world: World) -> list[str]:
    """Return what kit does not know of the whole training, within a while."""
    told: dict[str, Any] = {}

    def knows() -> bool:
        told.update(world.status())
        # Docker's manager refuses the logs of a node for a while after its power was off.
        unread = any("its log cannot be read now" in host["message"] for host in told["hosts"])
        ranks = sorted(rank for host in told["hosts"] for rank in host["ranks"])
        running = all(host["state"] == "running" for host in told["hosts"])
        known = unread or ranks == [*range(len(NODES))]
        return told["state"] == "running" and running and known

    deadline = time.monotonic() + SETTLED
    while not knows():
        if time.monotonic() > deadline:
            hosts = [(each["host"], each["state"], each["ranks"]) for each in told["hosts"]]
            return [f"kit status still tells {told['state']}, {hosts} of {JOB}, which is whole"]
        time.sleep(1)
    return []
