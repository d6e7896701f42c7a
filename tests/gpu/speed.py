"""Speed beside what people would run instead, in the same process, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.gpu import runs
from tests.gpu.check import Figure, Figures, LackingError, Place, check
from tests.trainer.hosts import metrics, wait_until
from tests.turns import turns
from trainer.contract import events
from trainer.contract.job import Train
from trainer.launcher.container import available_cores


def world() -> Any:
    """A world of this process alone, on the GPU if there is one."""
    from trainer.parallel.world import join_world

    return join_world({"KIT_HOST": "bench"}, timedelta(seconds=60))


def compared(
    place: Place, sides: dict[str, Callable[[], float]], unit: str, aims: dict[str, float]
) -> Figures:
    """Let sides take turns; the first is the reference of all others. Return medians and ratios."""
    turns(1, sides)
    found = turns(place.size(5, 1), sides)
    reference, *others = found
    figures = {side: Figure(statistics.median(rates), unit) for side, rates in found.items()}
    for side in others:
        ratios = [one / other for one, other in zip(found[side], found[reference], strict=True)]
        aim = aims.get(side) if place.cuda else None
        figures[f"{side} / {reference}"] = Figure(statistics.median(ratios), least=aim)
    return figures


@check("speed", alone=True)
def ceilings(place: Place) -> Figures:
    """What the device can do at best: a bf16 product and a copy in its memory."""
    import torch

    device = torch.device("cuda" if place.cuda else "cpu")
    side, count = place.size((8192, 2**30), (256, 2**20))
    one, other = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.randint(256, (count,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def seconds(work: Callable[[], object]) -> float:
        spans = []
        for _ in range(13):
            began = time.perf_counter()
            work()
            if place.cuda:
                torch.cuda.synchronize()
            spans.append(time.perf_counter() - began)
        return statistics.median(spans[3:])

    product, copy = seconds(lambda: one @ other), seconds(lambda: target.copy_(source))
    return {
        "bf16": Figure(2 * side**3 / product / 1e12, "TFLOP/s"),
        "memory": Figure(2 * count / copy / 1e12, "TB/s"),
    }


@check("speed", needs=("numpy",), alone=True)
def lenet_on_small_images(place: Place) -> Figures:
    """LeNet on images of CIFAR-10's shape, beside the loop of PyTorch's tutorials."""
    import torch

    from tests.epochs import FOREVER, Epochs, images_like, timed
    from tests.trainer import tutorial

    batch, count, own = 256, place.size(50_000, 1_000), world()
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=draw)
    labels = torch.randint(10, (count,), generator=draw)
    theirs = tutorial.Trainer(tutorial.Images(images, labels), batch, own.device)
    data = images_like(images, labels)
    sides = {"tutorial": timed(count, theirs.run_epoch, own.device)}
    for name, changes in (("ours", {}), ("compiled", {"compile": True})):
        if place.cuda or not changes:
            train = settings("lenet", batch, epochs=FOREVER, **changes)
            sides[name] = timed(count, Epochs(own, data, train, place.folder), own.device)
    return compared(place, sides, "images/s", {"ours": 10.0})


def settings(model: str, batch: int, **changes: Any) -> Train:
    """The keys of a training whose data are in memory."""
    base: dict[str, Any] = {"dataset": "cifar10", "learning_rate": 0.001, "batch_size": batch}
    return Train(**{**base, "model": model, **changes})


@check("speed", needs=("numpy", "torchvision"), alone=True)
def resnet50(place: Place) -> Figures:
    """ResNet-50 in bf16, beside torchvision's script without its loader."""
    import torch
    from torchvision.models import resnet50 as build

    from tests.epochs import FOREVER, Epochs, images_like, timed
    from tests.gpu.references import torchvision_steps

    own, (batch, count, side) = world(), place.size((128, 2048, 224), (2, 4, 32))
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=draw)
    labels = torch.randint(1000, (count,), generator=draw)
    data = images_like(images, labels, side=side)
    floats = images.float().div_(127.5).sub_(1)
    floats = floats.pin_memory() if place.cuda else floats
    theirs = torchvision_steps(build(), floats, labels, own.device, batch)
    sides = {"script": timed(count, theirs, own.device)}
    for name, changes in (("ours", {}), ("compiled", {"compile": True})):
        if place.cuda or not changes:
            more = {"precision": "bf16", "label_smoothing": 0.1, "epochs": FOREVER, **changes}
            train = settings("torchvision/resnet50", batch, **more)
            sides[name] = timed(count, Epochs(own, data, train, place.folder), own.device)
    return compared(place, sides, "images/s", {"ours": 1.3})


@check("speed", needs=("numpy",), alone=True, seconds=200)
def gpt_of_124_million(place: Place) -> Figures:
    """A GPT-2 of 124 million parameters, beside nanoGPT's model and loop."""
    import numpy as np
    import torch

    from tests.epochs import FOREVER, Epochs, timed
    from tests.gpu.references import Nano, nano_steps
    from trainer.data.samples import DataSet
    from trainer.text.windows import Windows

    layers, heads, width, context, batch, steps, known = place.size(
        (12, 12, 768, 1024, 32, 20, 50_304), (2, 2, 32, 16, 2, 2, 300)
    )
    own, count = world(), batch * steps
    tokens = np.random.default_rng(0).integers(0, known, count * context + 1, dtype=np.uint16)
    windows = Windows.of(tokens, context, b"random")
    data = DataSet(windows, windows, torch.zeros(1), torch.ones(1), known)
    base: dict[str, Any] = {
        "dataset": "text", "context": context, "optimizer": "adamw", "learning_rate": 6e-4,
        "weight_decay": 0.1, "clip_norm": 1.0, "epochs": FOREVER,
        "options": {"layers": layers, "heads": heads, "width": width, "tied": True},
    }  # fmt: skip
    sides = {}
    plain = Nano(layers, heads, width, context, known).to(own.device)
    kinds = {"nanoGPT": plain}
    if place.cuda:
        kinds["nanoGPT compiled"] = torch.compile(
            Nano(layers, heads, width, context, known).to(own.device)
        )  # type: ignore[assignment]
    text = torch.from_numpy(tokens.astype(np.int64))
    for name, model in kinds.items():
        theirs = nano_steps(model, text, own.device, batch, context, steps)
        sides[name] = timed(count * context, theirs, own.device)
    mine = {}
    for name, changes in (("ours", {}), ("ours compiled", {"compile": True})):
        if place.cuda or not changes:
            mine[name] = Epochs(own, data, settings("gpt", batch, **base, **changes), place.folder)
            sides[name] = timed(count * context, mine[name], own.device)
    figures = dict(compared(place, sides, "tokens/s", {"ours": 1.3, "ours compiled": 1.3}))
    for name, each in mine.items():
        speed = each.run.announcer.speed
        if speed.peak:
            rate = float(figures[name].value)
            figures[f"{name}, MFU"] = Figure(
                100 * rate * speed.operations / speed.peak, "%", least=45
            )
    return figures


@check("speed", needs=("numpy",), alone=True)
def airbench(place: Place) -> Figures:
    """The steps of airbench94's ten epochs, on other pictures of CIFAR-10's number and size."""
    runs.write_cifar10(place.folder, *place.size((50_000, 10_000), (200, 50)))
    recipe: dict[str, Any] = {
        "dataset": "cifar10", "model": "airbench", "epochs": 10,
        "batch_size": place.size(1024, 20), "learning_rate": 1.5, "weight_decay": 0.00133,
        "schedule": "triangle", "label_smoothing": 0.2, "ema": True, "flip_at_test": True,
        "every_epochs": 10,
    }  # fmt: skip
    figures = {}
    ways: dict[str, dict[str, Any]] = {"": {}}
    if place.cuda:
        ways["compiled "] = {"compile": True}
    for name, way in ways.items():
        folder = f"airbench {name}".strip().replace(" ", "-")
        with runs.local(place) as local:
            runs.finish(runs.start(local, folder, {"OMP_NUM_THREADS": "8"}, **{**recipe, **way}))
        rate = runs.rate(place.folder / folder)
        count = place.size(50_000, 200)
        aim = 2.6 if place.cuda else None
        figures[f"{name}steps of ten epochs"] = Figure(10 * count / rate, "s", most=aim)
        figures[f"{name}accuracy"] = Figure(100 * runs.last(place.folder / folder)["accuracy"], "%")
    return figures


@check("speed", needs=("numpy", "PIL", "torchvision"), alone=True)
def decoding(place: Place) -> Figures:
    """JPEG files of 400 pixels, decoded and augmented by the CPU's workers and by the GPU."""
    classes, each, side = place.size((8, 250, 400), (2, 10, 64))
    runs.write_pictures(place.folder / "pictures" / "train", classes, each, side)
    runs.write_pictures(place.folder / "pictures" / "test", classes, 4, side)
    base: dict[str, Any] = {
        "dataset": "folder", "path": "pictures", "model": "torchvision/resnet18", "epochs": 4,
        "image_size": place.size(224, 32), "batch_size": place.size(100, 4), "every_epochs": 4,
        "learning_rate": 0.01,
    }  # fmt: skip
    found = {}
    # As the launcher has it, and with it as many workers.
    cores = {"OMP_NUM_THREADS": available_cores() if place.cuda else 1}
    for name in ("cpu", "gpu") if place.cuda else ("cpu",):
        with runs.local(place) as local:
            runs.finish(runs.start(local, name, cores, **base, decode=name))
        found[name] = runs.rate(place.folder / name)
    return {name: Figure(rate, "images/s") for name, rate in found.items()}


@check("speed", needs=("sklearn",), alone=True)
def a_cold_start(place: Place) -> Figures:
    """From the start of a process to its first step, and the pause of a large checkpoint."""
    with runs.local(place) as local:
        began = time.monotonic()
        task = runs.start(local, "cold", epochs=1)
        wait_until(lambda: bool(task.of(events.Begin)), "the first step")
        seconds = time.monotonic() - began
        runs.finish(task)
    return {"first step after": Figure(seconds, "s"), **stall(place)}


def stall(place: Place) -> dict[str, Figure]:
    """The pauses for checkpoints of a gpt, on this machine's disk."""
    runs.write_text(place.folder / "text.txt", place.size(60_000, 2_000))
    size = place.size({"preset": "gpt2"}, {"layers": 1, "heads": 2, "width": 32})
    job: dict[str, Any] = {
        "dataset": "text", "path": "text.txt", "model": "gpt", "context": place.size(512, 16),
        "batch_size": 16, "epochs": 4, "optimizer": "adamw", "learning_rate": 1e-4,
        "options": size, "keep": 1,
    }  # fmt: skip
    with runs.local(place) as local:
        runs.finish(runs.start(local, "large", **job))
    folder: Path = place.folder / "large"
    pauses = [line["stall"] for line in metrics(folder) if line.get("stall") is not None]
    if not pauses:
        raise LackingError("no checkpoint was written")
    sizes = [each.stat().st_size for each in folder.glob("step-*/state.pt")]
    return {
        "checkpoint": Figure(max(sizes) / 2**20, "MiB"),
        "pause for it": Figure(statistics.median(pauses), "s"),
    }
