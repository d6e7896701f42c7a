"""Faults of operators: kit is killed while it works, or two of them work at once."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.lab.chaos.world import World

LONGEST = {"render": 1.0, "split": 1.5, "swarm up": 4.0, "deploy": 6.0}
"""Seconds in which each command is killed: about as long as it runs."""


def kill_render(world: World) -> None:
    """Kill a render, and render again: the tree is that of a render which was not disturbed."""
    world.describe(turn=world.turn + 1)
    killed(world, "render")
    world.operator.kit("render")
    tree = contents(world)
    world.operator.kit("render", "--check")
    world.write()
    world.require(contents(world) == tree, "a render after a killed one differs from another")


def kill_split(world: World) -> None:
    """Kill a split, and do it again: the inventory is a whole one before and after."""
    move = ("split", "--infer", "n2:1", "--yes")
    killed(world, *move)
    world.operator.kit("plan")
    world.operator.kit(*move)
    world.require("use: inference" in world.inventory(), "a split after a killed one did nothing")
    world.write()


def kill_swarm(world: World) -> None:
    """Kill `swarm up` while a node lacks a label, and do it again."""
    world.nodes.docker("n1", "node", "update", "--label-rm", "kit.host", "n3")
    killed(world, "swarm", "up", "--yes")
    world.operator.kit("swarm", "up", "--yes")
    labels = json.loads(world.nodes.docker("n1", "node", "inspect", "n3"))[0]["Spec"]["Labels"]
    world.require(labels.get("kit.host") == "n3", f"n3 has the labels {labels}")


def kill_deploy(world: World) -> None:
    """Kill the deploy of a changed job, and do it again."""
    world.write(turn=world.turn + 1)
    killed(world, "deploy")
    told = world.operator.kit("deploy", "--break-lock")
    world.require("digits/n2: running" in told or "runs already" in told, told)


def deploy_twice(world: World) -> None:
    """Let two operators deploy a change at once: one does it, the other one is told so."""
    world.write(turn=world.turn + 1)
    first = world.operator.start("deploy")
    time.sleep(world.draw.uniform(0, 1))
    both = [first, world.operator.start("deploy")]
    texts = [process.communicate(timeout=240)[0] for process in both]
    codes = sorted(process.returncode for process in both)
    world.require(codes in ([0, 0], [0, 1]), f"two deploys ended with {codes}: {texts}")
    world.require(not any("Traceback" in text for text in texts), f"a deploy failed: {texts}")
    if codes == [0, 1]:
        world.require(any("deploying" in text for text in texts), f"nobody is named: {texts}")
    world.require("runs already" in world.operator.kit("deploy"), "a third deploy has work to do")


def killed(world: World, *arguments: str) -> None:
    """Run kit, and kill it at a random time."""
    process = world.operator.start(*arguments)
    command = "swarm up" if arguments[0] == "swarm" else arguments[0]
    time.sleep(world.draw.uniform(0.1, LONGEST[command]))
    process.kill()
    output, _ = process.communicate()
    world.require("Traceback" not in output, f"kit {command} failed: {output}")


def contents(world: World) -> dict[Path, bytes]:
    """The rendered files."""
    folder = world.operator.project.folder / "compose"
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
