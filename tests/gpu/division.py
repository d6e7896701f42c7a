"""A model that is divided among ranks, and its attention."""

from __future__ import annotations

from typing import Any

from tests.gpu import runs
from tests.gpu.check import Figure, Figures, Place, check
from tests.gpu.training import ended, stepping
from tests.trainer.hosts import kill, wait_until
from trainer.contract import events

GPT: dict[str, Any] = {
    "dataset": "text", "path": "text.txt", "model": "gpt", "context": 64, "batch_size": 32,
    "epochs": 2, "optimizer": "adamw", "learning_rate": 2e-3, "clip_norm": 1.0,
    "options": {"layers": 4, "heads": 4, "width": 128, "tied": False},
}  # fmt: skip
NEAR = 0.05
"""Nats between losses of the same steps, whose sums are rounded in another order."""


@check("division", needs=("numpy",), seconds=150)
def divided_models(place: Place) -> Figures:
    """Replicas, shards, tensors and stages on two ranks learn as one rank does."""
    runs.write_text(place.folder / "text.txt", place.size(40_000, 8_000))
    ways: dict[str, dict[str, Any]] = {
        "replicas": {},
        "shards": {"shard": 2},
        "tensors": {"tensor": 2, "batch_size": 64},
        "stages": {"pipeline": 2, "accumulation": 2},
    }
    with runs.local(place) as local:
        alone = runs.start(local, "alone", **{**GPT, "batch_size": 64})
        tasks = {name: runs.pair(local, name, **{**GPT, **way}) for name, way in ways.items()}
        for each in tasks.values():
            runs.finish(*each)
        runs.finish(alone)
    whole = runs.last(place.folder / "alone")["validation_loss"]
    figures = {"alone": Figure(whole, "nats", most=3.0)}
    for name in ways:
        folders = [place.folder / f"{name}-{number}" for number in range(2)]
        loss = runs.last(*folders)["validation_loss"]
        figures[name] = Figure(abs(loss - whole), "nats off", most=NEAR)
    return figures


@check("division", needs=("numpy",), seconds=150)
def a_lost_shard(place: Place) -> Figures:
    """A rank with a part of the model is killed: all go on from a checkpoint when it is back."""
    runs.write_text(place.folder / "text.txt", 20_000)
    job = {**GPT, "shard": 2, "epochs": 500}
    with runs.local(place) as local:
        tasks = runs.pair(local, "shard", **job)
        stepping(*tasks)
        # One of them has all parts: the newest may lack that of the killed rank.
        wait_until(
            lambda: max(len(task.of(events.Saved)) for task in tasks) > 1, "two checkpoints", 60
        )
        kill(tasks[1].workers()[0])
        wait_until(lambda: any(task.of(events.Resumed) for task in tasks), "a new group")
        ended(*tasks)
    resumed = [each.step for task in tasks for each in task.of(events.Resumed)]
    return {"resumed at step": Figure(resumed[0])}


@check("division")
def attention(place: Place) -> Figures:
    """Which kernel attention uses, with and without documents, and what documents cost."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from trainer.contract.gpt import gpt_of
    from trainer.core.gpt import GPT, initialise

    device = torch.device("cuda" if place.cuda else "cpu")
    size = gpt_of({"layers": 2, "heads": 8, "width": 512})
    batch, context = place.size((16, 1024), (2, 32))
    tokens = torch.randint(1, 100, (batch, context), device=device)
    tokens[:, :: context // 4] = 0
    figures = {}
    kind = ProfilerActivity.CUDA if place.cuda else ProfilerActivity.CPU
    for name, end in (("plain", None), ("documents", 0)):
        model = GPT(size, 100, context, end=end).to(device)
        initialise(model, 0)

        def step(model: Any = model) -> None:
            with torch.autocast(device.type, torch.bfloat16):
                model(tokens).float().square().mean().backward()

        step()
        with profile(activities=[kind]) as profiler:
            step()
            if place.cuda:
                torch.cuda.synchronize()
        found = profiler.key_averages()
        kernels = [each.key for each in found if "flash" in each.key or "fmha" in each.key.lower()
                   or "sdpa" in each.key or "attention" in each.key]  # fmt: skip
        flash = any("flash" in each or "sdpa" in each for each in kernels)
        figures[name] = Figure("flash" if flash else "; ".join(kernels)[:120] or "unknown")
        total = sum(each.self_device_time_total for each in found)
        figures[f"{name}, kernels"] = Figure(total / 1000, "ms")
    if place.cuda:
        assert figures["plain"].value == "flash", figures
    return figures
