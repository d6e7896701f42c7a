"""The loss and the metrics on the samples of the validation, or of the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import exp, log
from typing import Any

import torch
from torch import Tensor

from trainer.contract.gpt import gpt_of
from trainer.contract.own import is_own
from trainer.core.by_class import Counts
from trainer.core.models import flip_scores
from trainer.core.precision import autocast
from trainer.core.run import Run
from trainer.custom.nested import floated
from trainer.data import shards
from trainer.data.samples import Samples
from trainer.parallel.halt import HaltError
from trainer.parallel.pipeline import Pipelined
from trainer.record.telemetry import Evaluation

EVALUATION_BATCH = 512
"""Samples of up to 64 pixels a side; fewer of larger ones. Without gradients the batch size affects
only memory."""

LARGEST_LOSS = 700.0  # e to its power is still a number.
SCORES = 2**27
"""Of a text: scores of a batch at most, 512 MiB in float32."""


def outputs_of(run: Run) -> Callable[[Any], Any]:
    """Return the function from inputs to float32 outputs by which the model is tested.

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
    """Measure each sample of a part on exactly one rank; all ranks return the same.

    Raises HaltError on all ranks if an accuracy is no share.
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
    """Combine the ranks' sums: each sample counts once, whichever rank has measured it."""
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
    """Return what a text's mean loss a token, in nats, is as other figures.

    Bits a byte can be compared between tokenizers, perplexities only for one.
    """
    data = run.data
    if not (data.text and run.task.classifies):
        return {}
    found = {"perplexity": exp(min(loss, LARGEST_LOSS))}
    if data.bytes_per_token:
        found["bits_per_byte"] = loss / log(2) / data.bytes_per_token
    return found
