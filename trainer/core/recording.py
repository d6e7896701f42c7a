"""What the record of a run gets from the training: its beginning, its epochs, its end."""

from __future__ import annotations

import time

from trainer.checkpoints.format import Progress
from trainer.contract.own import is_own
from trainer.core.alike import sources_of_trainer
from trainer.core.evaluation import outputs_of
from trainer.core.run import Run
from trainer.record.predictions import predict
from trainer.record.telemetry import Figures, Place
from trainer.record.texts import write_text
from trainer.text.vocabulary import vocabulary_of


def begin_record(run: Run, progress: Progress, place: Place) -> None:
    """Begin the record of this process's part of the run; all ranks must call it."""
    about = {
        "steps": place.steps,
        "epochs": place.epochs,
        "global_batch": run.global_batch,
        "parameters": run.parameters,
        "precision": run.precision,
        "trainer": sources_of_trainer(),
    }
    run.recorder.begin(progress, run.data, about, run.watch.read)


def record_epoch(run: Run, figures: Figures) -> None:
    """Record an epoch, a text of a saved model, and at the end its predictions.

    All ranks must call it.
    """
    run.recorder.epoch(figures)
    place = figures.place
    text = run.data.text
    alone = not run.job.parallel.used  # One rank of a divided model can not write by itself.
    if text and alone and not is_own(run.job.train.model) and figures.saved and run.world.rank == 0:
        train, data = run.job.train, run.data
        vocabulary = vocabulary_of(data.labels, data.tokenizer)
        written = write_text(run.tested, vocabulary, train.context, run.world.device)
        run.recorder.note("sample", place, text=written)
    if not place.last:
        return
    began = time.monotonic()
    if not text and run.task.classifies and not is_own(run.job.train.dataset):
        run.recorder.evaluation(predict(run.world, run.data, run.checkpoints, outputs_of(run)))
    run.recorder.note("end", place, evaluation=time.monotonic() - began)
    run.recorder.close()
