"""Modules of one's own for tests, and jobs of them."""

import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.trainer.hosts import write_job
from trainer.contract.job import Checkpoint, Exchange, Metrics, Train, TrainJob

REGRESSION = """
import torch
from torch import nn

def build(settings):
    width = settings.options.get("width", 8)
    return nn.Sequential(nn.Linear(*settings.shape, width), nn.Tanh(), nn.Linear(width, 1))

def data(settings):
    draw = torch.Generator().manual_seed(settings.seed)
    inputs = torch.randn(307, 5, generator=draw)
    targets = inputs.square().sum(1, keepdim=True)
    return (inputs[:200], targets[:200]), (inputs[200:], targets[200:])

def loss(outputs, targets):
    return (outputs - targets).square().mean()

def metrics(outputs, targets):
    return {"mae": (outputs - targets).abs().mean(), "worst": (outputs - targets).abs()[:, 0]}

def answer(outputs):
    return outputs[:, 0]
"""
BASE: dict[str, Any] = {
    "dataset": "mine:data",
    "model": "mine:build",
    "epochs": 2,
    "batch_size": 16,
    "learning_rate": 0.01,
}


def write_module(folder: Path, text: str = REGRESSION, name: str = "mine") -> Path:
    """Write a module of one's own."""
    file = folder / f"{name}.py"
    file.write_text(dedent(text).lstrip("\n"))
    return file


def own_job(folder: Path, **changes: Any) -> Path:
    """Write the job file of a module `mine`."""
    folder.mkdir(exist_ok=True)
    return write_job(folder, "mine", **{**BASE, "weight_decay": 0.0, **changes})


def train_job(**changes: Any) -> TrainJob:
    return TrainJob("mine", Train(**{**BASE, **changes}), Exchange(), Checkpoint(), Metrics())


def use(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Let this process import a module of one's own, as the trainer does."""
    monkeypatch.setenv("KIT_CODE", str(file))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, file.stem, raising=False)
    monkeypatch.setattr("trainer.custom.code.ROOTS", set[Path]())
