"""The data sets that this host's data agent has fetched for the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trainer.contract.job import Train
from trainer.contract.models import is_weights_name


def place_data(train: Train, root: Path, environ: Mapping[str, str]) -> tuple[Train, Path]:
    """Return the location of a job's data: a fetched folder (KIT_DATA_PATHS), or below `root`.

    A fetched data set has the name of `train.dataset`, or is the first part of `train.path`.
    """
    fetched: dict[str, str] = json.loads(environ.get("KIT_DATA_PATHS") or "{}")
    first, *rest = Path(train.path).parts or ("",)
    if train.dataset in ("folder", "text") and first in fetched:
        return replace(train, path=str(Path(fetched[first], *rest))), root
    if train.dataset not in fetched:
        return train, root
    if train.weights and not is_weights_name(train.weights):
        train = replace(train, weights=str(root / train.weights))
    return train, Path(fetched[train.dataset])
