"""How faults of processes, nodes, links and disks are made, and how they are undone."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.lab.chaos.world import JOB, MANAGER, NODES, VOLUME, World
from tests.lab.nodes import each

Act = Callable[[World, str], None]

TRAINS = r"-u -m trainer\.train$"
"""The command line of a process that trains."""
AGENT = r"trainer\.elastic\.agent"
SLOW = "2mbit"
DISK, SIZE = "/srv/small", "16m"
CHECKPOINTS = f"kit-test_{JOB}-checkpoints"


def kill_rank(world: World, node: str) -> None:
    (worker,) = world.pids(node, TRAINS)
    world.inside(node, f"kill -KILL {worker}")


def kill_agent(world: World, node: str) -> None:
    (agent,) = world.pids(node, AGENT)
    world.inside(node, f"kill -KILL {agent}")


def kill_container(world: World, node: str) -> None:
    world.nodes.docker(node, "kill", *world.containers(node))


def kill_coordinator(world: World, node: str) -> None:
    world.nodes.docker(node, "kill", *world.containers(node, "rendezvous"))


def kill_engine(world: World, node: str) -> None:
    # Else the node would start it again at once, as systemd does.
    world.inside(node, "rm /run/docker.wanted && kill -KILL $(cat /run/docker.pid)")


def start_engine(world: World, node: str) -> None:
    world.inside(node, "systemctl start docker")


def restart_engine(world: World, node: str) -> None:
    world.inside(node, "systemctl restart docker")


def first_worker(world: World) -> str:
    """Return the node of rank 0; if it is the manager, let another one get that rank before."""
    if world.first() == MANAGER:
        kill_rank(world, MANAGER)
        world.wait_for(lambda: world.first() != MANAGER, "another node to get rank 0")
        world.wait_until_whole(time.monotonic(), "with rank 0 elsewhere")
    return world.first()


def cut_power(world: World, node: str) -> None:
    # Without a network first: the end of its processes must not tell anybody.
    world.nodes.cable("disconnect", node)
    world.nodes.power("kill", node)


def restore_power(world: World, node: str) -> None:
    world.nodes.cable("connect", node)
    world.nodes.power("start", node)


def cut_all(world: World, _: str) -> None:
    each(lambda node: cut_power(world, node), NODES)


def restore_all(world: World, _: str) -> None:
    each(lambda node: restore_power(world, node), NODES)


def power(verb: str) -> Act:
    return lambda world, node: world.nodes.power(verb, node)


def cable(verb: str) -> Act:
    return lambda world, node: world.nodes.cable(verb, node)


def slow_down(world: World, node: str) -> None:
    world.nodes.shape(node, SLOW)


def speed_up(world: World, node: str) -> None:
    world.nodes.shape(node, "off")


def kill_in_save(world: World, node: str) -> None:
    """Kill the rank as soon as there is a checkpoint that has not got its name yet."""
    (worker,) = world.pids(node, TRAINS)
    draft = f"{VOLUME}/.writing-step-*"
    # Without other programs: they would take longer than the save.
    wait = f"set -- {draft}; while [ ! -e $1 ]; do set -- {draft}; done"
    world.inside(node, f"{wait}; kill -KILL {worker}")


def corrupt(world: World, node: str) -> None:
    """Damage the newest checkpoint of a node, and end all training processes at once."""
    newest = f"$(ls -d {VOLUME}/step-* | sort | tail -n 1)/state.pt"
    damage = f"printf damaged | dd of={newest} bs=1 seek=2000 conv=notrunc status=none"
    each(lambda one: kill_container(world, one), NODES)
    world.inside(node, damage)


def use_small_disk(world: World, node: str) -> None:
    """Keep a node's checkpoints on a disk of its own, which may be filled without harm."""
    mount = f"mkdir -p {DISK} && mount -t tmpfs -o size={SIZE},mode=1777 tmpfs {DISK}"
    options = [f"--opt={option}" for option in ("type=none", f"device={DISK}", "o=bind")]
    without_checkpoints(world, node)
    world.inside(node, mount)
    world.nodes.docker(node, "volume", "create", *options, CHECKPOINTS)
    world.operator.kit("deploy")


def fill_disk(world: World, node: str) -> None:
    world.inside(node, f"! dd if=/dev/zero of={DISK}/filler bs=64k status=none 2>/dev/null")


def free_disk(world: World, node: str) -> None:
    world.inside(node, f"rm {DISK}/filler")


def use_own_disk(world: World, node: str) -> None:
    without_checkpoints(world, node)
    world.inside(node, f"umount {DISK} && rmdir {DISK}")
    world.operator.kit("deploy")


def without_checkpoints(world: World, node: str) -> None:
    """Stop the job, and remove the checkpoints of a node; it gets those of the others."""
    world.operator.kit("stop", JOB)
    world.wait_for(lambda: not world.remains(), "the end of the job")
    world.nodes.docker(node, "volume", "rm", CHECKPOINTS)
