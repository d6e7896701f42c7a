"""Plays the built-in training in tests of kit: without PyTorch it starts in a tenth of a second.

In the image `stand-in:lab` it has the place of trainer/train.py; launcher, agent and coordinator
are the real ones. It keeps the training's side of every contract: the places and orders of the
agent, the pulse, events, lines for people, metrics.jsonl, checkpoints with manifest and COMPLETE
that travel to hosts that lack them. It learns nothing: the accuracy follows from the epoch.
tests/trainer/test_stand_in.py runs it and the real training through the same checks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainer.checkpoints.layout import COMPLETE, MANIFEST, NAME, STATE, folder_name
from trainer.checkpoints.manifest import UnusableError, check, parse
from trainer.contract import events
from trainer.contract.batch import global_batch
from trainer.contract.job import TrainJob
from trainer.core.job import JobError, load_job
from trainer.elastic.pulse import Pulse
from trainer.elastic.workers import Place, place_line
from trainer.group.messages import Group, Order, decode
from trainer.output import emit, say, say_error

SAMPLES = 1437
"""Training samples of digits."""
EVERY = 1.0
"""Seconds between two events of progress."""


class LostPeerError(Exception):
    """Another rank has gone, or the coordinator has aborted the group."""


@dataclass(frozen=True)
class State:
    """What the training has reached."""

    generation: int = 0  # The group in which it was reached; 0: a checkpoint's.
    step: int = 0
    epoch: int = 0
    position: int = 0

    @property
    def accuracy(self) -> float | None:
        return round(1 - 0.9 ** (self.epoch * 5), 4) if self.epoch else None


class Hub:
    """Passes what the ranks of a group say on to all of them; each host's first worker has one."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        port = self._listener.getsockname()[1]
        self.endpoint = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self._groups: dict[int, dict[int, Any]] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            lines = self._listener.accept()[0].makefile("rwb")
            with suppress(OSError, ValueError):
                generation, rank, size = json.loads(lines.readline())
                group = self._groups.setdefault(generation, {})
                group[rank] = lines
                if len(group) == size:
                    ranks = [group[rank] for rank in range(size)]
                    threading.Thread(target=self._serve, args=(ranks,), daemon=True).start()

    def _serve(self, ranks: list[Any]) -> None:
        with suppress(OSError, ValueError):
            while words := [each.readline() for each in ranks]:
                if not all(words):
                    break
                line = json.dumps([json.loads(word) for word in words]).encode() + b"\n"
                for each in reversed(ranks):  # This process, which has rank 0, may end then.
                    each.write(line)
                    each.flush()
        for each in ranks:
            with suppress(OSError):
                each.close()


class World:
    """The ranks of one group, and their exchanges."""

    def __init__(self, group: Group, rank: int, pulse: Pulse) -> None:
        host, _, port = group.members[0].store.rpartition(":")
        self.group, self.rank, self.size, self._pulse = group, rank, group.size, pulse
        self.hosts = ", ".join(member.host for member in group.members)
        self.broken = False
        try:
            self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=30)
        except OSError as error:
            raise LostPeerError from error
        self.socket.settimeout(None)
        self._lines = self.socket.makefile("rwb")
        self._say([group.generation, rank, group.size])

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks; wait for them."""
        self._pulse.reach()
        self._say(value)
        try:
            line = self._lines.readline()
        except (OSError, ValueError) as error:
            raise LostPeerError from error
        if self.broken or not line:
            raise LostPeerError
        self._pulse.end()
        return list(json.loads(line))

    def abort(self) -> None:
        """End a wait for others."""
        self.broken = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _say(self, value: Any) -> None:
        try:
            self._lines.write(json.dumps(value).encode() + b"\n")
            self._lines.flush()
        except (OSError, ValueError) as error:
            raise LostPeerError from error


class Membership:
    """This worker's place, as the agent of its host knows it."""

    def __init__(self) -> None:
        self.local_rank = int(os.environ["LOCAL_RANK"])
        start, left = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["KIT_LEFT"])
        hub = Hub(os.environ["KIT_ADDRESS"]) if self.local_rank == 0 else None
        self._place = Place(self.local_rank, start, left=left, store=hub.endpoint if hub else "")
        self._pulse, self._lock = Pulse(os.environ["KIT_PULSE"]), threading.Condition()
        self._order, self._joined = Order(), 0
        self._world: World | None = None
        self.asked = self.saves = self.ending = False
        self._agent = socket.socket(socket.AF_UNIX)
        self._agent.connect(os.environ["KIT_WORKERS"])
        threading.Thread(target=self._listen, daemon=True).start()

    def join(self) -> World | None:
        """Wait for a group and join it; None if this worker shall end."""
        with self._lock:
            self._say(replace(self._place, ready=True))
            newest = max(self._place.generation, self._place.left)
            self._lock.wait_for(lambda: self.ending or self._order.generation > newest)
            if self.ending:
                return None
            group, self.asked, self.saves = self._order.group, False, False
            assert group
            self._joined = group.generation
            self._pulse.begin(group.generation)
            self._say(replace(self._place, ready=False))
        rank = group.first_rank(os.environ["KIT_AGENT"]) + self.local_rank
        world = World(group, rank, self._pulse)
        with self._lock:
            if self._order.generation != group.generation:
                raise LostPeerError
            self._world = world
            members = tuple(member.agent for member in group.members)
            place = replace(self._place, generation=group.generation, members=members)
            self._say(replace(place, rank=rank))
        return world

    def leave(self) -> None:
        """Leave the group, or the one that did not form."""
        with self._lock:
            if self._world:
                self._world.abort()
            self._world = None
            self._say(replace(self._place, left=max(self._joined, self._place.left)))

    def _say(self, place: Place) -> None:
        self._place = place
        with suppress(OSError):
            self._agent.sendall(place_line(place))

    def _listen(self) -> None:
        with suppress(OSError), self._agent.makefile("rb") as lines:
            for line in lines:
                with self._lock:
                    self._take(decode(Order, line))
                    self._lock.notify_all()
        if not self.ending:
            os._exit(1)

    def _take(self, order: Order) -> None:
        if order.kind == "join" and order.generation > self._order.generation:
            self._order = order
        elif order.kind == "leave" and order.generation == self._order.generation:
            self.saves, self.asked = (
                order.save,
                True,
            )  # In this order: they are read without the lock.
        elif order.kind == "abort" and order.generation == self._order.generation:
            if self._world:
                self._world.abort()
            elif order.generation > self._place.left:
                self._order = Order()  # The group has failed before this worker joined it.
                self._say(replace(self._place, left=order.generation))
        elif order.kind == "end":
            self.saves = self.asked = self.ending = True


class Folder:
    """The checkpoints of this host."""

    def __init__(self, job: TrainJob) -> None:
        self._job = job
        self.path = Path(os.environ.get("KIT_CHECKPOINTS") or "/checkpoints")

    def newest(self) -> dict[str, Any] | None:
        """Return the manifest of the newest checkpoint that is whole."""
        for path in sorted(self.path.glob(f"step-*/{COMPLETE}"), reverse=True):
            folder = path.parent
            with suppress(UnusableError, OSError):
                content = parse((folder / MANIFEST).read_bytes())
                found, state = check(content), (folder / STATE).read_bytes()
                whole = hashlib.sha256(state).hexdigest() == found.sha256
                if whole and found.job == self._job.name and re.fullmatch(NAME, folder.name):
                    return content
            say_error(f"trainer: warning: skips {folder}: it cannot be read")
        return None

    def save(self, state: State, world_size: int) -> str:
        """Write a checkpoint and remove the oldest; return its name."""
        name = folder_name(state.step)
        if (self.path / name / COMPLETE).exists():
            return name
        content = json.dumps(asdict(state)).encode()
        digest = hashlib.sha256(content).hexdigest()
        manifest = {
            "step": state.step,
            "epoch": state.epoch,
            "position": state.position,
            "accuracy": state.accuracy,
            "validation_loss": None,
            "world_size": world_size,
            "job": {"name": self._job.name},
            "own": {},
            "serving": {},
            "files": {STATE: {"bytes": len(content), "sha256": digest}},
            "torch": "none",
        }
        draft = self.path / f".writing-{name}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        (draft / STATE).write_bytes(content)
        (draft / MANIFEST).write_text(json.dumps(manifest))
        (draft / COMPLETE).touch()
        draft.rename(self.path / name)
        for old in sorted(self.path.glob("step-*"))[: -self._job.checkpoint.keep]:
            shutil.rmtree(old)
        return name

    def note(self, event: str, state: State, **more: Any) -> None:
        """Add a line to metrics.jsonl."""
        line = {"time": round(time.time(), 3), "event": event, **asdict(state)}
        with (self.path / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps(line | {"accuracy": state.accuracy} | more) + "\n")


class Training:
    """One process's part in a training, from group to group."""

    def __init__(self, job: TrainJob) -> None:
        self._job, self._folder, self._membership = job, Folder(job), Membership()
        self._pace = float(os.environ.get("LAB_PACE") or "0.01")
        self._state: State | None = None
        self._checkpoint: str | None = None
        self._last_step = time.monotonic()

    def run(self) -> int:
        """Train in one group after the other; return the exit code."""
        while True:
            try:
                world = self._membership.join()
                if world is None:
                    self._save_alone()
                    return 0
                if self._train(world):
                    return 0
            except LostPeerError:
                pass
            self._membership.leave()

    def _train(self, world: World) -> bool:
        """Train in a group; return whether the training is over."""
        state, goes_on = self._agree(world)
        self._tell_place(world, state, goes_on=goes_on)
        told = 0.0
        while state.epoch < self._job.train.epochs:
            time.sleep(self._pace)
            halts, saves = self._membership.asked, self._membership.saves
            heard = world.gather([halts, saves])
            state = self._step(world, state)
            if state.position == 0:
                self._end_epoch(world, state)
            elif time.monotonic() - told > EVERY:
                told = time.monotonic()
                self._emit(world, events.Progress(**self._figures(world, state)))
            if any(asked for asked, _ in heard) and state.epoch < self._job.train.epochs:
                self._interrupt(world, state, saves=any(saved for _, saved in heard))
                return False
        world.gather(None)
        return True

    def _agree(self, world: World) -> tuple[State, bool]:
        """Return the newest state of any rank, and whether it was in memory."""
        manifest = self._folder.newest()
        name = folder_name(manifest["step"]) if manifest else ""
        heard = world.gather(
            {
                "live": asdict(self._state) if self._state else None,
                "saved": manifest,
                "checkpoint": self._checkpoint or name,
            }
        )
        live = [State(**each["live"]) for each in heard if each["live"]]
        saved = [each["saved"] for each in heard if each["saved"]]
        self._checkpoint = max(each["checkpoint"] for each in heard) or None
        if live:
            state = max(live, key=lambda each: (each.generation, each.step))
        elif saved:
            newest = max(saved, key=lambda each: int(each["step"]))
            keys = ("step", "epoch", "position")
            state = State(0, *(int(newest.get(key, 0)) for key in keys))
            if self._membership.local_rank == 0:
                self._folder.save(state, int(newest["world_size"]))  # A host that lacks it.
        else:
            state = State()
        self._state = replace(state, generation=world.group.generation)
        return self._state, bool(live)

    def _tell_place(self, world: World, state: State, *, goes_on: bool) -> None:
        host, size = os.environ.get("KIT_HOST", ""), world.size
        gpus = tuple(uuid for uuid in os.environ.get("KIT_GPUS", "").split(",") if uuid)
        rank, local = world.rank, self._membership.local_rank
        restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        member = events.Member(rank=rank, local_rank=local, world_size=size, restarts=restarts)
        emit(replace(member, gpus=gpus))
        visible = os.environ.get("NVIDIA_VISIBLE_DEVICES", "not set")
        words = f"rank {world.rank} of {size}, local rank {self._membership.local_rank} on {host}"
        say(f"{words}, cpu, NVIDIA_VISIBLE_DEVICES {visible}")
        steps, where = self._steps(world, state), f"epoch {state.epoch} + {state.position}"
        job, pause = self._job.train, time.monotonic() - self._last_step
        if goes_on:
            who = f"1 process on {world.hosts} continues"
            who = who if size == 1 else f"{size} processes on {world.hosts} continue"
            told = f"{who} at step {state.step}, {where}, after a pause of {pause:.2f} s"
            event: events.Event = events.Regrouped(
                epoch=state.epoch,
                step=state.step,
                steps=steps,
                world_size=size,
                seconds=round(pause, 3),
                hosts=tuple(member.host for member in world.group.members),
                reason=world.group.why,
            )
        else:
            told = f"resumes at step {state.step}, {where}" if state.step else ""
            event = events.Begin(epochs=job.epochs, steps=steps, world_size=size)
        self._emit(world, event)
        if not goes_on and state.step:
            at = {"epoch": state.epoch, "step": state.step}
            self._emit(world, events.Resumed(**at, checkpoint=self._checkpoint or ""))
        if world.rank == 0 and told:
            say(told)
        if world.rank == 0 and not goes_on:
            self._folder.note("start", state, world_size=size)

    def _step(self, world: World, state: State) -> State:
        position = state.position + global_batch(self._job.train, world.size)
        whole = position >= SAMPLES
        state = State(
            world.group.generation,
            state.step + 1,
            state.epoch + whole,
            0 if whole else position,
        )
        self._state, self._last_step = state, time.monotonic()
        return state

    def _end_epoch(self, world: World, state: State) -> None:
        last = state.epoch == self._job.train.epochs
        if last or state.epoch % self._job.checkpoint.every_epochs == 0:
            self._save(world, state)
        self._emit(world, events.Epoch(**self._figures(world, state)))
        if world.rank == 0:
            self._folder.note("epoch", state, world_size=world.size)
            say(f"{state.epoch:4d}/{self._job.train.epochs:<4d}{state.step:8d}")
        if world.rank == 0 and last:
            self._folder.note("end", state, world_size=world.size)
            say(f"done: accuracy {state.accuracy:.4f}, checkpoint {self._checkpoint}")

    def _save(self, world: World, state: State) -> None:
        # In a folder that all hosts share, one rank writes.
        shared = self._job.checkpoint.shared
        if (world.rank if shared else self._membership.local_rank) == 0:
            self._folder.save(state, world.size)
        self._checkpoint = folder_name(state.step)
        at = {"epoch": state.epoch, "step": state.step}
        self._emit(world, events.Saved(checkpoint=self._checkpoint, **at))

    def _interrupt(self, world: World, state: State, *, saves: bool) -> None:
        if saves:
            self._save(world, state)
            at = {"epoch": state.epoch, "step": state.step}
            self._emit(world, events.Stopped(**at, checkpoint=self._checkpoint))
            if world.rank == 0:
                self._folder.note("stop", state, world_size=world.size)
                say(f"stopped at step {state.step}, epoch {state.epoch} + {state.position}, saved")
        with suppress(LostPeerError):
            world.gather(None)  # Nobody leaves before all know that they stop.

    def _save_alone(self) -> None:
        if self._state and self._state.step and self._membership.local_rank == 0:
            self._folder.save(self._state, 1)

    def _steps(self, world: World, state: State) -> int:
        batch = global_batch(self._job.train, world.size)
        rest = -(-(SAMPLES - state.position) // batch)
        return state.step + rest + (self._job.train.epochs - state.epoch - 1) * -(-SAMPLES // batch)

    def _figures(self, world: World, state: State) -> dict[str, Any]:
        return {
            "epoch": state.epoch,
            "epochs": self._job.train.epochs,
            "step": state.step,
            "steps": self._steps(world, state)
            if state.epoch < self._job.train.epochs
            else state.step,
            "world_size": world.size,
            "loss": 1.0,
            "accuracy": state.accuracy,
            "images_per_second": 100.0,
            "seconds_left": 1.0,
            "checkpoint": self._checkpoint,
        }

    def _emit(self, world: World, event: events.Event) -> None:
        if world.rank == 0:
            emit(event)


def main() -> int:
    """Train the job of the file KIT_JOB; return the exit code."""
    try:
        job = load_job(Path(os.environ["KIT_JOB"]))
    except JobError as error:
        say_error(f"trainer: {error}")
        return 2
    return Training(job).run()


if __name__ == "__main__":
    sys.exit(main())
