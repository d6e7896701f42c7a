"""The built-in training as users run it: on CUDA, alone and as two hosts that exchange by NCCL."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from tests.gpu import runs
from tests.gpu.check import Figure, Figures, LackingError, Place, check
from tests.trainer.hosts import Task, complete_steps, kill, metrics, send, wait_until
from trainer.contract import events

LEARNED, LEARNED_ONCE = 0.9, 0.7
"""Shares of the test digits, after six epochs and after one. With nothing learnt it is 0.1."""


def short(place: Place, epochs: int = 6) -> dict[str, Any]:
    """So many epochs; on a CPU one."""
    count = place.size(epochs, 1)
    return {"epochs": count, "every_epochs": count}


def accuracy(place: Place, *folders: Path) -> Figure:
    """The accuracy at the end of a training, in percent."""
    aim = 100 * place.size(LEARNED, LEARNED_ONCE)
    return Figure(100 * runs.last(*folders)["accuracy"], "%", least=aim)


def trained(place: Place, ways: dict[str, dict[str, Any]]) -> Figures:
    """Train digits in each way, side by side; return the accuracies."""
    with runs.local(place) as local:
        tasks = {
            name: runs.start(local, name, **{**short(place), **way}) for name, way in ways.items()
        }
        runs.finish(*tasks.values())
        for name, task in tasks.items():
            device = "cuda:0" if place.cuda else "cpu"
            assert device in task.text, f"{name}: not on {device}:\n{task.text}"
    return {name: accuracy(place, place.folder / name) for name in ways}


@check("training", needs=("sklearn",))
def precisions(place: Place) -> Figures:
    """Every type of arithmetic learns, and auto chooses bf16 on a GPU of today."""
    kinds = ("auto", "fp32", "bf16", "fp16")
    found = dict(trained(place, {kind: {"precision": kind} for kind in kinds}))
    return {**found, "auto is": Figure(chosen(next(place.folder.glob("*-auto.log")).read_text()))}


def chosen(log: str) -> str:
    """The type of arithmetic that a training names as it begins."""
    found = re.search(r", (bf16|fp16|fp32), exchange ", log)
    assert found, f"the log names no type:\n{log[-3000:]}"
    return found[1]


@check("training", needs=("sklearn",))
def ways_to_train(place: Place) -> Figures:
    """What a step may do besides the usual."""
    return trained(
        place,
        {
            "accumulation": {"batch_size": 16, "accumulation": 2},
            "lookahead": {"ema": True},
            "average": {"ema_decay": 0.99},
            "clipping": {"clip_norm": 1.0},
            "skipping": {"on_nan": "skip", "precision": "fp16"},
            "adamw": {"optimizer": "adamw", "learning_rate": 0.002},
            "repeating": {"repeat_above": 50.0},
        },
    )


@check("training", needs=("sklearn",), seconds=150)
def compiling(place: Place) -> Figures:
    """torch.compile, which needs a compiler of C on the machine."""
    ways: dict[str, dict[str, Any]] = {"compiled": {"compile": True}}
    if place.cuda:  # The compiler of a CPU takes a minute of its time for each.
        ways["compiled fp16"] = {"compile": True, "precision": "fp16"}
    return trained(place, ways)


@check("training", needs=("sklearn",), seconds=150)
def exchanges(place: Place) -> Figures:
    """Each way to exchange, of two hosts."""
    local_steps = {"every_steps": 8, "warm_up_steps": 15}
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "fp16": {"compression": "fp16"},
        "bf16": {"compression": "bf16"},
        "powersgd": {"compression": "powersgd", "warm_up_steps": 15},
        "powersgd fp16": {"compression": "powersgd", "precision": "fp16", "warm_up_steps": 15},
        "local_sgd": {"mode": "local_sgd", **local_steps},
        "overlapped": {"mode": "local_sgd", **local_steps, "overlap": True, "compression": "fp16"},
        "diloco": {"mode": "diloco", **local_steps, "optimizer": "adamw", "learning_rate": 0.002},
        "static": {"static_graph": True},
    }
    found = {}
    with runs.local(place) as local:
        tasks = {
            name: runs.pair(local, name, **{**short(place, 8), **way}) for name, way in ways.items()
        }
        for name, each in tasks.items():
            runs.finish(*each)
            found[name] = accuracy(place, *(place.folder / f"{name}-{n}" for n in range(2)))
    return found


@check("training", needs=("sklearn",))
def resume(place: Place) -> Figures:
    """A training that was stopped ends as one that was not, bit by bit, as far as kernels allow."""
    places = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    count = place.size(40, 12)
    job = {
        "epochs": count,
        "every_epochs": count,
        "keep": 50,
        "ema_decay": 0.99,
        "learning_rate": 0.05,
    }
    with runs.local(place) as local:
        whole, again = (runs.start(local, each, places, **job) for each in ("whole", "again"))
        begun = runs.start(local, "parts", places, **job)
        wait_until(lambda: len(epochs(place.folder / "parts")) > 3, "three epochs")
        os.kill(begun.process.pid, signal.SIGTERM)
        begun.wait()
        stopped = complete_steps(place.folder / "parts")
        assert stopped, begun.text
        ended = runs.start(local, "parts", places, **job)
        runs.finish(whole, again, ended)
        assert ended.of(events.Resumed), ended.text
    ends = {each: runs.weights(place.folder / each) for each in ("whole", "again", "parts")}
    same = ends["whole"] == ends["again"]
    other = differing(ends["whole"], ends["parts"])
    assert not other, (
        f"resumed at {stopped[-1]}, other weights; two alike are equal: {same}: {other}"
    )
    return {
        "stopped at": Figure(stopped[-1]),
        "two alike are bit-equal": Figure(str(same)),
        "resumed is bit-equal": Figure(str(not other)),
        "accuracy": accuracy(place, place.folder / "parts"),
    }


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """The names of the weights that are not equal, bit by bit, or that one side lacks."""
    return sorted(name for name in one | other if one.get(name) != other.get(name))


def epochs(folder: Path) -> list[dict[str, Any]]:
    """The lines of whole epochs."""
    return [line for line in metrics(folder) if line["event"] == "epoch"]


def pauses(*tasks: Task) -> list[events.Regrouped]:
    """The pauses of a training, in the order of time."""
    return [each for task in tasks for each in task.of(events.Regrouped)]


STOPPED = 128 + signal.SIGTERM
LONG: dict[str, Any] = {
    "epochs": 1000, "every_epochs": 1000, "batch_size": 16, "learning_rate": 0.02,
}  # fmt: skip


def stepping(*tasks: Task, size: int = 2) -> None:
    """Wait until a training takes steps at a world size."""

    def seen() -> bool:
        for task in tasks:
            assert task.process.poll() in (None, 0), task.text[-3000:]
        found = [each for task in tasks for each in task.of(events.Progress)]
        return any(each.world_size == size and each.step > 20 for each in found)

    wait_until(seen, f"steps of {size} ranks")


def ended(*tasks: Task) -> None:
    """Stop a training as `kit stop` does; it saves and ends well."""
    for task in tasks:
        task.process.send_signal(signal.SIGTERM)
    for task in tasks:
        code = task.wait()
        assert code == STOPPED, f"{task.log.name} ended with {code}:\n{task.text[-3000:]}"
        assert task.of(events.Stopped) or task is not tasks[0], task.text[-3000:]


def learned(since: events.Regrouped, *folders: Path) -> Figure:
    """Wait until an epoch that ends after a pause has learned; return its accuracy, in percent."""

    def found() -> list[float]:
        lines = [line for folder in folders for line in epochs(folder)]
        after = [line["accuracy"] for line in lines if line["step"] > since.step]
        return [each for each in after if each >= LEARNED]

    wait_until(lambda: bool(found()), "an epoch that has learned")
    return Figure(100 * found()[0], "%", least=100 * LEARNED)


@check("training", needs=("sklearn",))
def regroup_after_a_kill(place: Place) -> Figures:
    """A worker is killed: the others abort their exchange by NCCL and go on, then it is back."""
    with runs.local(place) as local:
        tasks = runs.pair(local, "killed", nnodes="1:2", **LONG)
        stepping(*tasks)
        kill(tasks[1].workers()[0])
        wait_until(lambda: len(pauses(*tasks)) >= 2, "out and in again")
        lost, back = pauses(*tasks)[:2]
        found = learned(back, *(place.folder / f"killed-{n}" for n in range(2)))
        ended(*tasks)
    assert (lost.world_size, back.world_size) == (1, 2), (lost, back)
    assert lost.step > 0, lost
    return {
        "pause at the loss": Figure(lost.seconds, "s", most=place.size(2, None)),
        "at its return": Figure(back.seconds, "s"),
        "accuracy": found,
    }


@check("training", needs=("sklearn",))
def regroup_after_a_loss(place: Place) -> Figures:
    """A whole host is gone for good: the other one goes on alone."""
    with runs.local(place) as local:
        tasks = runs.pair(local, "lost", nnodes="1:2", **LONG)
        stepping(*tasks)
        tasks[1].end()
        wait_until(lambda: bool(pauses(tasks[0])), "the other goes on")
        lost = pauses(tasks[0])[0]
        found = learned(lost, place.folder / "lost-0")
        ended(tasks[0])
    return {"pause": Figure(lost.seconds, "s", most=place.size(2, None)), "accuracy": found}


@check("training", needs=("sklearn",))
def regroup_after_silence(place: Place) -> Figures:
    """A worker hangs: its host and the others find out, and go on without it."""
    with runs.local(place) as local:
        tasks = runs.pair(local, "silent", nnodes="1:2", **LONG, timeout=20)
        stepping(*tasks)
        began = time.monotonic()
        send(tasks[1].workers()[0], signal.SIGSTOP)
        wait_until(lambda: bool(pauses(*tasks)), "the other goes on")
        seconds = time.monotonic() - began
        lost = pauses(*tasks)[0]
        found = learned(lost, *(place.folder / f"silent-{n}" for n in range(2)))
        ended(*tasks)
    return {"until steps again": Figure(seconds, "s"), "accuracy": found}


@check("training", needs=("numpy",))
def out_of_memory(place: Place) -> Figures:
    """A batch without room has a class of its own, and says so."""
    if not place.cuda:
        raise LackingError("no GPU")
    runs.write_text(place.folder / "text.txt", 4_000_000)
    job = {
        "dataset": "text", "path": "text.txt", "model": "gpt", "context": 1024, "epochs": 1,
        "batch_size": 16_384, "optimizer": "adamw", "learning_rate": 1e-3,
        "options": {"layers": 24, "heads": 16, "width": 2048},
    }  # fmt: skip
    with runs.local(place) as local:
        (task,) = runs.pair(local, "memory", nnodes="1:1", count=1, **job)
        code = task.wait()
        failed = task.of(events.Failed)
    assert code, "it has ended well"
    assert failed, task.text[-3000:]
    assert failed[0].kind == "memory", failed[0]
    return {"class": Figure(failed[0].kind), "message": Figure(failed[0].message[:120])}


@check("training", needs=("sklearn",))
def a_gpu_that_cannot_be_used(place: Place) -> Figures:
    """A container whose GPU torch does not see does not train on the CPU in silence."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "KIT_GPUS": "GPU-00000000-0000-0000-0000-000000000000"}
    with runs.local(place) as local:
        task = runs.start(local, "hidden", hidden, **short(place))
        asked = runs.start(local, "asked", {**hidden}, **short(place), device="cpu")
        code = task.wait()
        runs.finish(asked)
        (failed,) = task.of(events.Failed)
    assert code, task.text
    assert failed.kind == "gpu", failed
    return {"class": Figure(failed.kind), "message": Figure(failed.message[:160])}


@check("training", needs=("numpy", "tokenizers"))
def texts(place: Place) -> Figures:
    """A gpt learns a text: of characters, of tokens with documents, with recomputed blocks."""
    runs.write_text(place.folder / "text.txt", place.size(100_000, 10_000))
    base: dict[str, Any] = {
        "dataset": "text", "path": "text.txt", "model": "gpt", "context": 64, "batch_size": 64,
        "epochs": 2, "optimizer": "adamw", "learning_rate": 2e-3, "clip_norm": 1.0,
        "options": {"layers": 2, "heads": 4, "width": 64},
    }  # fmt: skip
    tokens = {"tokenizer": "bpe", "vocabulary": 300, "separator": "<|endoftext|>"}
    tokens |= {"epochs": place.size(2, 12)}
    ways: dict[str, dict[str, Any]] = {
        "characters": {},
        "rotary": {"options": {**base["options"], "positions": "rotary"}},
        "recomputed": {"activation_checkpointing": True},
        "tokens": tokens,
        "fp32": {"precision": "fp32"},
    }
    with runs.local(place) as local:
        tasks = [runs.start(local, name, **{**base, **way}) for name, way in ways.items()]
        runs.finish(*tasks)
    losses = {name: runs.last(place.folder / name)["validation_loss"] for name in ways}
    return {name: Figure(loss, "nats", most=3.0) for name, loss in losses.items()}


@check("training", needs=("numpy", "PIL", "torchvision"))
def pictures(place: Place) -> Figures:
    """A ResNet on JPEG files, decoded by the CPU and by the GPU, with augmentation and mixing."""
    runs.write_pictures(place.folder / "pictures" / "train", 4, 60, 96)
    runs.write_pictures(place.folder / "pictures" / "test", 4, 10, 96)
    base: dict[str, Any] = {
        "dataset": "folder", "path": "pictures", "model": "torchvision/resnet18", "epochs": 10,
        "image_size": 64, "batch_size": 16, "learning_rate": 0.02, "every_epochs": 10,
    }  # fmt: skip
    ways: dict[str, dict[str, Any]] = {
        "cpu": {},
        "mixed": {"mixup": 0.2, "cutmix": 1.0, "random_erasing": 0.1, "augmentation": "trivial"},
        **({"gpu": {"decode": "gpu"}} if place.cuda else {}),
    }
    with runs.local(place) as local:
        tasks = [runs.start(local, name, **{**base, **way}) for name, way in ways.items()]
        runs.finish(*tasks)
    return {
        name: Figure(100 * runs.last(place.folder / name)["accuracy"], "%", least=30)
        for name in ways
    }
