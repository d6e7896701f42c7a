"""The same job and the same faults on a Swarm and on Kubernetes, one after the other.

    python -m tests.bench_engines --kill "CMD {}" --start "CMD {}"    as root, with KUBECONFIG

The Swarm is a lab of this program. The cluster needs three nodes with nvidia.com/gpu, real or
pretended, and the image stand-in:lab (`python -m tests.kubernetes.image`): a training without
PyTorch, with the real launcher, agent and coordinator. --kill and --start are commands that cut the
power of a node of the cluster, {}, and restore it; without them these rows are left out.

A pause is the time without a step that rank 0 reports. Prints seconds; the ratio is Kubernetes to
Swarm.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import find_docker
from tests.kubernetes.cluster import JOB as SHORT
from tests.kubernetes.cluster import able_nodes, inventory, kubectl, own_namespace
from tests.lab import settings
from tests.lab.chaos.__main__ import LAB
from tests.lab.conftest import Lab, wait_for
from tests.lab.host import require, run
from tests.lab.operator import make_operator
from tests.sandbox import Project, kit_process

HOSTS = 3
JOB = SHORT.replace("epochs: 3000", "epochs: 99999")
MODEL = "TITAN RTX"
RENDEZVOUS = "job-name=train-digits-rendezvous"


@dataclass(frozen=True)
class Engine:
    """An engine with the job's three hosts; `kill` ends the containers of the job on a host."""

    kit: Callable[..., str]
    lost: Callable[[], str]
    """The host that is lost: neither that of rank 0 nor that of the coordinator."""
    kill: Callable[[str], object]
    power: tuple[Callable[[str], object], Callable[[str], object]] | None
    """Cuts and restores the power of a host."""

    def world(self) -> int:
        jobs = json.loads(self.kit("status", "--json"))["jobs"]
        return int(jobs[0]["world_size"]) if jobs and jobs[0]["progress"] else 0

    def wait(self, size: int) -> None:
        wait_for(lambda: self.world() == size, f"{size} hosts to train")

    def events(self, since: float) -> list[dict[str, Any]]:
        lines = self.kit("logs", "digits", "--events").splitlines()
        found = [json.loads(line[line.index("{") :]) for line in lines if "@kit {" in line]
        return sorted(
            (each for each in found if each["time"] > since), key=lambda each: each["time"]
        )

    def until_progress(self, *words: str) -> float:
        """Run kit; return the seconds until the first progress."""
        began = time.time()
        self.kit(*words)
        self.wait(HOSTS)
        first = next(each for each in self.events(began) if each["event"] == "progress")
        return float(first["time"]) - began

    def _groups(self, since: float, size: int) -> list[dict[str, Any]]:
        """Return the events of groups of `size` hosts."""
        wanted = ("regrouped", size)
        found = self.events(since)
        return [each for each in found if (each["event"], each.get("world_size")) == wanted]

    def regrouped(self, since: float, size: int) -> tuple[float, float]:
        """Return when a group of `size` trained, in seconds, and its pause."""
        first = self._groups(since, size)[0]
        return first["time"] - since, first["seconds"]

    def measure(self) -> Iterator[tuple[str, float]]:
        """Yield what is measured, and its seconds."""
        yield "deploy, until the first progress", self.until_progress("deploy", "digits")
        yield from self._lose("container", self.kill, None)
        if self.power:
            yield from self._lose("host", *self.power)
        began = time.time()
        self.kit("stop", "digits")
        yield "stop, with a checkpoint", time.time() - began
        yield "resume, until the first progress", self.until_progress("resume", "digits")
        self.kit("stop", "digits")

    def _lose(
        self, what: str, cut: Callable[[str], object], restore: Callable[[str], object] | None
    ) -> Iterator[tuple[str, float]]:
        host, began = self.lost(), time.time()
        cut(host)
        if restore:
            self.wait(HOSTS - 1)
            restored = time.time()
            restore(host)
        else:
            restored = began
            wait_for(lambda: self._groups(began, HOSTS - 1), "a group without the host")
        self.wait(HOSTS)
        yield f"{what} killed, pause", self.regrouped(began, HOSTS - 1)[1]
        back, pause = self.regrouped(restored, HOSTS)
        yield f"{what} back, until it trains", back
        yield f"{what} back, pause", pause


@contextmanager
def swarm() -> Iterator[Engine]:
    """A Swarm of three nodes, one GPU of the job on each."""
    lab = Lab(settings.load({**os.environ, **LAB}), LAB)
    with tempfile.TemporaryDirectory() as folder:
        operator = make_operator(lab, Project(Path(folder)), find_docker(), "swarm")
        try:
            lab.do("up")
            lab.do("gpus", "n3", MODEL)
            lab.do("image")
            operator.write({"digits": JOB.replace("{min: 1}", "{gpus_per_host: 1, min: 1}")})
            operator.kit("swarm", "up", "--yes")
            yield Engine(
                operator.kit,
                lambda: "n3",
                lambda host: lab.docker(host, "kill", *containers(lab, host)),
                (lambda host: lab.do("kill", host), lambda host: lab.do("start", host)),
            )
        finally:
            lab.do("down")


def containers(lab: Lab, host: str) -> list[str]:
    return lab.docker(host, "ps", "-q", "--filter", "name=train-digits_train").split()


@contextmanager
def kubernetes(kill: str, start: str) -> Iterator[Engine]:
    """The cluster that KUBECONFIG names."""
    hosts = able_nodes()[:HOSTS]
    assert len(hosts) == HOSTS, f"{HOSTS} nodes with nvidia.com/gpu are needed: {hosts}"
    with own_namespace() as name, tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.write(inventory(name, hosts), {"digits": JOB})

        def kit(*words: str) -> str:
            result = kit_process(project.folder, *words)
            assert result.status == 0, result.err
            return result.out

        def pods(label: str) -> dict[str, str]:
            found = kubectl("-n", name, "get", "pods", "-l", label, "-o", "json")["items"]
            return {each["spec"]["nodeName"]: each["metadata"]["name"] for each in found}

        def lost() -> str:
            return next(host for host in hosts[1:] if host not in pods(RENDEZVOUS))

        def delete(host: str) -> None:
            pod = pods("app.kubernetes.io/component=train")[host]
            kubectl("-n", name, "delete", "pod", pod, "--grace-period=0", "--force")

        kit("render")
        power = (by_command(kill), by_command(start)) if kill and start else None
        yield Engine(kit, lost, delete, power)


def by_command(command: str) -> Callable[[str], object]:
    return lambda host: run(*command.format(host).split())


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kill", default="", help="command that cuts the power of node {}")
    parser.add_argument("--start", default="", help="command that restores it")
    chosen = parser.parse_args()
    require()
    found: dict[str, dict[str, float]] = {}
    for name, made in (("Swarm", swarm()), ("Kubernetes", kubernetes(chosen.kill, chosen.start))):
        with made as engine:
            for what, seconds in engine.measure():
                print(f"{name}: {what}: {seconds:.2f} s", file=sys.stderr, flush=True)
                found.setdefault(what, {})[name] = seconds
    print("| event | Swarm, s | Kubernetes, s | ratio |\n| --- | --- | --- | --- |")
    for what, both in found.items():
        if len(both) == 2:
            one, other = both["Swarm"], both["Kubernetes"]
            print(f"| {what} | {one:.2f} | {other:.2f} | {other / one:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
