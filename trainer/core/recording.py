"""What the record of a run gets from the training: its beginning, its epochs, its end."""

from __future__ import annotations

import time
from dataclasses import asdict

from trainer.checkpoints.format import Progress
from trainer.contract.own import is_own
from trainer.core.alike import sources_of_trainer
from trainer.core.evaluation import Evaluation, outputs_of
from trainer.core.figures import Figures
from trainer.core.run import Run
from trainer.record.predictions import predict
from trainer.record.texts import write_text
from trainer.text.vocabulary import vocabulary_of


def begin_record(run: Run, progress: Progress, start: Figures) -> None:
    """Begin the record of this process's part of the run; all ranks must call it."""
    about = {
        "steps": start.steps,
        "epochs": start.epochs,
        "global_batch": run.global_batch,
        "parameters": run.parameters,
        "precision": run.precision,
        "trainer": sources_of_trainer(),
    }
    run.recorder.begin(progress, run.data, about, run.watch.read)


def record_epoch(
    run: Run,
    figures: Figures,
    progress: Progress,
    seconds: float,
    *,
    saved: bool,
    tested: Evaluation | None,
) -> None:
    """Record an epoch, evaluated in `seconds`; all ranks must call it.

    `tested` are the means over the test samples at the end of the training.
    """
    run.recorder.note(
        "epoch",
        progress,
        loss=figures.loss,
        accuracy=figures.accuracy,
        validation_loss=figures.validation_loss,
        metrics=figures.metrics,
        tokens_per_second=figures.tokens_per_second,
        mfu=figures.mfu,
        images_per_second=figures.images_per_second,
        evaluation=seconds,
        skipped=len(figures.skipped),
        slow=figures.slow,
        # Only of the trained model: a line of 1,000 classes has some 10 kB.
        by_class=asdict(tested.by_class) if tested and tested.by_class.samples else None,
        test=tested.figures if tested and run.data.validation is not None else None,
    )
    text = run.data.text
    alone = not run.job.parallel.used  # One rank of a divided model can not write by itself.
    if text and alone and not is_own(run.job.train.model) and saved and run.world.rank == 0:
        train, data = run.job.train, run.data
        vocabulary = vocabulary_of(data.labels, data.tokenizer)
        written = write_text(run.tested, vocabulary, train.context, run.world.device)
        run.recorder.note("sample", progress, text=written)
    if tested is None:
        return
    began = time.monotonic()
    if not text and run.task.classifies and not is_own(run.job.train.dataset):
        run.recorder.evaluation(predict(run.world, run.data, run.checkpoints, outputs_of(run)))
    run.recorder.note("end", progress, evaluation=time.monotonic() - began)
    run.recorder.close()
