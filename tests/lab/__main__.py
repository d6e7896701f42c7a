"""The lab's command line: tests/lab/lab."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.lab import images, settings, toolkit
from tests.lab.files import inventory, remove
from tests.lab.host import Engine, locked, mounts, require
from tests.lab.nodes import Nodes
from tests.lab.settings import IMAGE, REGISTRY, LabError, Settings

HELP = """\
The lab: a real Docker Swarm on this machine, each node a container with an engine of its own.

  up [N]                start N nodes (default 3); what runs already stays as it is
  swarm                 make them one swarm; its manager is n1
  down [--all]          remove this lab; with --all every lab, the engine and the caches too
  status                show the nodes
  inventory             print the inventory.yaml that describes them
  env                   print what a shell needs to reach them: eval "$(tests/lab/lab env)"
  sh NODE [COMMAND…]    a shell in a node, or a command
  docker NODE …         docker with that node's engine
  logs NODE [-f]        what the node and its engine have said
  kill | start NODE     cut the power, switch it on again
  stop NODE             shut the node down in good order
  pause | unpause NODE  let it hang, let it go on
  disconnect | connect NODE      pull the network cable, plug it in again
  shape NODE RATE|off   limit what the node sends, as in: shape n2 1gbit
  restart NODE          start its engine anew, with the daemon.json that it finds
  gpus NODE [MODEL…]    exchange its GPUs, as in: gpus n3 "TITAN RTX" "Quadro GV100"
  bare NODE             leave it the driver and Docker: no toolkit, no daemon.json, no swarm; `gpus`
                        makes it whole again, and `swarm` a member
  toolkit FOLDER        build what stands in for NVIDIA's package there, as in:
                        kit host prepare n2 --run --toolkit FOLDER
  image                 build the trainer's image, registry.lab:5000/trainer:lab, with PyTorch
  torch                 show the nodes this machine's PyTorch as it is now, at /opt/torch

environment:
  KIT_LAB               folder of everything (default: kit-lab in $XDG_CACHE_HOME or ~/.cache)
  KIT_LAB_NAME          of this lab, where there are several (lab)
  KIT_LAB_NET           its network, without the last byte (10.77.0)
  KIT_LAB_NODES         how many nodes (3)
  KIT_LAB_SWARM=no      leaves `make lab` without a swarm
  KIT_LAB_HEARTBEAT     how often a node tells that it lives (5s, Docker's own)
  KIT_LAB_SUITE         Debian release of the nodes, and with it Docker's version (trixie)
  KIT_LAB_MIRROR        Debian mirror
  KIT_LAB_PYTHON        the Python whose PyTorch the nodes see (.venv/bin/python)
"""


class Lab:
    """The verbs, with their arguments."""

    def __init__(self, lab: Settings) -> None:
        self.settings = lab
        self.engine = Engine(lab)
        self.nodes = Nodes(lab, self.engine)

    def verbs(self) -> dict[str, Callable[..., None]]:
        power = ("kill", "start", "stop", "pause", "unpause")
        own = ("make", "up", "swarm", "down", "status", "inventory", "env", "sh", "docker", "logs")
        others = ("shape", "restart", "gpus", "bare", "toolkit", "torch", "image")
        return {
            **{verb: getattr(self, verb) for verb in (*own, *others)},
            **{verb: partial(self.power, verb) for verb in power},
            **{verb: partial(self.cable, verb) for verb in ("disconnect", "connect")},
        }

    def make(self) -> None:
        """Do the work of `make lab`."""
        self.up()
        if self.settings.with_swarm:
            self.swarm()
        self.status()
        inventory_file = self.settings.folder / "inventory.yaml"
        print(
            "\nssh, docker and kit on the nodes:\n"
            '  eval "$(tests/lab/lab env)"\n'
            "  ssh n2 nvidia-smi -L\n"
            "  docker node ls\n"
            f"  kit plan -i {inventory_file}\n"
            "What else there is: tests/lab/lab. Remove it: make lab-down"
        )

    def up(self, number: str | None = None) -> None:
        with locked(self.settings):
            self.nodes.up(settings.count(number) if number else self.settings.nodes)

    def swarm(self) -> None:
        self.nodes.check("n1")
        with locked(self.settings):
            self.nodes.swarm()

    def down(self, option: str = "") -> None:
        if option not in {"", "--all"}:
            raise LabError(f"down takes --all or nothing, not {option}", 2)
        if not self.settings.home.exists():
            return
        with locked(self.settings):
            for name in {self.settings.name, *(self._labs() if option else ())}:
                Nodes(settings.load({**os.environ, "KIT_LAB_NAME": name}), self.engine).down()
            if not self._labs():
                self.engine.stop()
            if option:
                if inside := mounts(self.settings.home):
                    raise LabError(f"{inside[0]} is mounted: nothing was removed around it")
                remove(self.settings.home, settings.RESERVED)

    def status(self) -> None:
        nodes = self.nodes.all()
        if not nodes:
            print("there is no lab here: make lab")
            return
        ready = self.nodes.ready()
        for node in nodes:
            container = self.settings.container(node)
            state = self.engine.docker("inspect", "--format", "{{.State.Status}}", container)
            swarm = "Ready" if node in ready else "-"
            gpus = ", ".join(gpu.model for gpu in self.settings.gpus(node)) or "no GPU"
            print(f"{node}  {self.settings.address(node)}  {state:8}  {swarm:5}  {gpus}")
        print(f"{REGISTRY} is {self.settings.services}, the lab's files are {self.settings.folder}")

    def inventory(self) -> None:
        nodes = self.nodes.all() or settings.names(self.settings.nodes)
        print(inventory(self.settings, nodes), end="")

    def env(self) -> None:
        print(f'export PATH={shlex.quote(str(self.settings.folder / "bin"))}:"$PATH"')
        print("export DOCKER_HOST=ssh://root@n1")

    def sh(self, node: str, *command: str) -> None:
        terminal = ["--tty"] if sys.stdin.isatty() else []
        container = self.settings.container(self.nodes.check(node))
        _become(self.engine.command("exec", "-i", *terminal, container, *(command or ["bash"])))

    def docker(self, node: str, *arguments: str) -> None:
        socket = self.settings.socket(self.nodes.check(node))
        _become(["docker", "-H", f"unix://{socket}", *arguments])

    def logs(self, node: str, *options: str) -> None:
        container = self.settings.container(self.nodes.check(node))
        _become(self.engine.command("logs", *options, container))

    def power(self, verb: str, node: str) -> None:
        self.nodes.power(verb, self.nodes.check(node))

    def cable(self, verb: str, node: str) -> None:
        self.nodes.cable(verb, self.nodes.check(node))

    def shape(self, node: str, rate: str) -> None:
        self.nodes.shape(self.nodes.check(node), rate)

    def restart(self, node: str) -> None:
        self.nodes.restart(self.nodes.check(node))

    def gpus(self, node: str, *models: str) -> None:
        self.nodes.gpus(self.nodes.check(node), models)

    def bare(self, node: str) -> None:
        self.nodes.bare(self.nodes.check(node))

    def toolkit(self, folder: str) -> None:
        print(toolkit.package(Path(folder)))

    def torch(self) -> None:
        with locked(self.settings):
            images.torch(self.settings)

    def image(self) -> None:
        node = self.nodes.check("n1")
        with locked(self.settings):
            images.trainer_image(self.settings, self.engine, node)
            images.torch(self.settings)
        print(IMAGE)

    def _labs(self) -> set[str]:
        """The labs that share the engine."""
        return {key.parts[-3] for key in self.settings.home.glob("*/keys/host_key")}


def _become(command: list[str]) -> None:
    sys.stdout.flush()
    os.execvp(command[0], command)


def call(verb: str, *arguments: str) -> None:
    """Run the verb with its arguments.

    Raises:
        LabError: It failed, or there is no such verb.
    """
    verbs = Lab(settings.load()).verbs()
    if verb not in verbs:
        raise LabError(f"{verb!r} is not a verb; tests/lab/lab lists them", 2)
    try:
        inspect.signature(verbs[verb]).bind(*arguments)
    except TypeError as error:
        raise LabError(f"{verb}: {error}; tests/lab/lab shows what it takes", 2) from None
    if verb not in {"inventory", "env"}:
        require()
    verbs[verb](*arguments)


def main() -> int:
    """Return the exit status: 0 done, 1 failed, 2 a mistake that the user can correct."""
    if sys.argv[1:] in ([], ["help"], ["-h"], ["--help"]):
        print(HELP, end="")
        return 0
    try:
        call(*sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe; the interpreter's last flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
