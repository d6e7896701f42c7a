"""The loss and the metrics on the validation samples or the test samples.

The test after the training uses the checkpoint with the best validation. A training that has
collapsed, or never learns, has the loss of guessing: a model that predicts the shares of classes in
the training samples for each sample. Its mean cross entropy is the entropy of the labels, ln K for
K classes of equal size.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import exp, log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.checkpoints.format import Progress, best_of, read, scores_of
from trainer.checkpoints.layout import folder_name
from trainer.checkpoints.manifest import UnusableError
from trainer.contract import events
from trainer.contract.gpt import gpt_of
from trainer.contract.own import is_own
from trainer.core.compute import autocast
from trainer.core.models import flip_scores
from trainer.core.run import Run
from trainer.core.state import load
from trainer.core.task import Counts, untaught
from trainer.custom.nested import floated
from trainer.data import shards
from trainer.data.samples import Samples
from trainer.output import say, say_error
from trainer.parallel.halt import HaltError
from trainer.parallel.pipeline import Pipelined
from trainer.record.telemetry import Evaluation

EVALUATION_BATCH = 512
"""Samples of up to 64 pixels a side; fewer of larger ones. Without gradients the batch size affects
only memory."""

LARGEST_LOSS = 700.0  # exp() of more overflows.
SCORES = 2**27
"""The most scores of a batch of text: 512 MiB in float32."""


def outputs_of(run: Run) -> Callable[[Any], Any]:
    """Return the function that computes the tested model's float32 outputs from inputs.

    All ranks must call it equally often. In a pipeline, only the last stage gets outputs.
    """
    # Without DDP's wrapper, which would exchange buffers.
    model: Callable[..., Any] = run.tested
    if run.job.train.flip_at_test:
        model = partial(flip_scores, run.tested)
    if isinstance(run.ranks, Pipelined):
        model = partial(run.ranks.outputs, width=gpt_of(run.job.train.options).width)

    def outputs(inputs: Any) -> Any:
        with autocast(run.precision, run.world.device):
            found = model(run.data.prepared(inputs))
        return None if found is None else floated(found)

    return outputs


@torch.no_grad()
def evaluate(run: Run, test: Samples) -> Evaluation:
    """Evaluate each of the samples on exactly one rank; all ranks return the same.

    Raises HaltError on all ranks if a metric named accuracy is not in 0 to 1.
    """
    run.ranks.share_buffers(run.modules)
    run.tested.eval()
    rank, size = run.ranks.data_rank, run.ranks.data_size
    batches = shards.evaluation_batches(len(test), rank, size, batch_size(run))
    test.expect(batch for batch, _ in batches)
    outputs, sums, seen = outputs_of(run), dict[str, Tensor](), 0
    classes = Counts()
    for part, counts in batches:
        inputs, targets = test.take(part, run.world.device)
        with run.task.guard():
            scores = outputs(inputs)
            if scores is None or not (counts and run.ranks.measures):
                continue
            found = run.task.sums(scores, targets)
            seen += run.task.count(targets)
        if run.task.classifies:
            classes.add(scores, targets)
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + value.double()
    means = combined(run, {name: value.item() for name, value in sums.items()}, seen)
    of_classes = run.task.classifies and not run.data.text
    return replace(means, by_class=classes.combined(run.world), classes=of_classes)


def batch_size(run: Run) -> int:
    """Return the samples of a test batch."""
    if is_own(run.job.train.dataset):
        return run.job.train.batch_size
    if run.data.text:
        return max(1, min(EVALUATION_BATCH, SCORES // (run.job.train.context * run.data.classes)))
    side = max(64, run.data.side, run.data.view.side if run.data.view else 0)
    return max(1, EVALUATION_BATCH * 64**2 // side**2)


def combined(run: Run, sums: dict[str, float], seen: int) -> Evaluation:
    """Combine the ranks' sums to means; each sample counts once."""
    known = run.world.gather((sums, seen))
    count = sum(own_seen for _, own_seen in known)
    names = dict.fromkeys(name for own, _ in known for name in own)
    means = {name: sum(own.get(name, 0.0) for own, _ in known) / count for name in names}
    loss = means.pop("loss")
    accuracy = means.get("accuracy")
    if accuracy is not None and not 0 <= accuracy <= 1:
        what = f"the metric accuracy is {accuracy:.4g}, not a share of 0 to 1"
        raise HaltError("input", f"{what}; give it another name")
    return Evaluation(count, loss, means | text_metrics(run, loss))


def text_metrics(run: Run, loss: float) -> dict[str, float]:
    """Convert a text's mean loss per token, in nats, to other metrics.

    Bits per byte can be compared between tokenizers, perplexities only for one tokenizer.
    """
    data = run.data
    if not (data.text and run.task.classifies):
        return {}
    found = {"perplexity": exp(min(loss, LARGEST_LOSS))}
    if data.bytes_per_token:
        found["bits_per_byte"] = loss / log(2) / data.bytes_per_token
    return found


WEIGHTS = ("model", "average")
"""The parts of a checkpoint that are tested and served."""


@contextmanager
def best_weights(run: Run, newest: str) -> Iterator[str]:
    """Load the weights of the best checkpoint, yield its name, then restore the weights.

    All ranks must enter it, after the checkpoint `newest` is on the disk. A divided model keeps its
    weights, as one rank may lack the memory for the whole model.
    """
    content = b"" if run.job.parallel.used else run.world.broadcast(_best(run, newest), 0)
    if not content:
        yield newest
        return
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    weights = {name: part for name, part in run.parts().items() if name in WEIGHTS}
    own = {name: _copied(part.state_dict()) for name, part in weights.items()}
    try:
        load(run, weights, state)
        yield folder_name(state["progress"]["step"])
    finally:  # The next group continues with the weights of its last step.
        load(run, weights, own)


def _best(run: Run, newest: str) -> bytes:
    """Return the state of the best checkpoint of rank 0's host; b"" if it is the newest."""
    best = best_of(scores_of(run.checkpoints, run.job)) if run.world.rank == 0 else None
    if best is None or best.name == newest:
        return b""
    try:
        return read(best, run.job).state
    except UnusableError as reason:
        say(f"tests {newest} instead of {best.name}, the best: {reason}")
        return b""


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: each.to("cpu", copy=True) for name, each in state.items()}


COUNTED = 2**20
"""Number of a text's first tokens by which the shares of tokens are counted."""


def entropy_of(labels: Tensor, classes: int = 0, smoothing: float = 0.0) -> float:
    """Return the entropy in nats of class numbers, int64 [N], of at least `classes` classes."""
    shares = labels.bincount(minlength=classes).double() / max(len(labels), 1)
    shares = (1 - smoothing) * shares + smoothing / len(shares)
    return float(-torch.special.xlogy(shares, shares).sum())


def guessing(run: Run) -> float | None:
    """Return the loss of guessing, in nats; None if the loss is not a cross entropy of classes.

    With label smoothing, the shares of the classes are smoothed too.
    """
    smoothing = run.job.train.label_smoothing
    if not run.task.classifies:
        return None
    train: Any = run.data.train
    if run.data.text:
        tokens = getattr(train, "tokens", None)
        if tokens is None:
            return None
        known = torch.from_numpy(np.asarray(tokens[:COUNTED]).astype(np.int64))
        return entropy_of(known, run.data.classes, smoothing)
    labels = train.labels
    if labels.ndim != 1 or labels.is_floating_point() or not len(labels):
        return None
    return entropy_of(labels.cpu(), run.data.classes, smoothing)


def judge(
    run: Run, progress: Progress, loss: float | None, found: Evaluation, *, saved: bool
) -> None:
    """Check an epoch's mean loss for a collapse; all ranks must call it, after the checkpoint.

    Raises HaltError on all ranks if nothing is learned, unless `on_collapse` is continue.
    """
    state, train = run.learning, run.job.train
    length = train.warm_up or 0
    begun = state.last if length >= 1 else (progress.epoch - 1) / train.epochs
    wrong = state.note(loss, progress.step, warm=begun >= length)
    if saved and not wrong and state.learned:
        state.good = folder_name(progress.step)
    last = progress.epoch == train.epochs
    if not wrong and last and (text := untaught(run.data.labels, found.by_class)):
        tell(run, text)
    if not wrong:
        return
    what = f"the training {wrong}"
    if train.on_collapse == "continue":
        tell(run, what)
        return
    good = f"the last good checkpoint is {state.good}; " if state.good else ""
    fix = "look at the labels, lower train.learning_rate, or leave it to the model's recipe"
    raise HaltError("loss", f"{what}; {good}{fix}; to continue anyway: `on_collapse: continue`")


def tell(run: Run, what: str) -> None:
    """Print a warning and emit an event on rank 0."""
    if run.world.rank == 0:
        say_error(f"trainer: warning: {what}")
        run.announcer.emit(events.Untaught(message=what))
