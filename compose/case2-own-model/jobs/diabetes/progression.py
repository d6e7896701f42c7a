"""How far diabetes progresses within a year, from ten measurements of a patient."""

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn import functional

from trainer.custom import Settings

Part = tuple[Tensor, Tensor]
SCALE = 100.0  # The targets are 25 to 346.


def data(settings: Settings) -> tuple[Part, Part]:
    values, targets = (torch.tensor(each).float() for each in load_diabetes(return_X_y=True))
    inputs, targets = values / values.std(0), targets[:, None] / SCALE
    order = torch.randperm(442, generator=torch.Generator().manual_seed(settings.seed))
    train, test = order[:342], order[342:]
    return (inputs[train], targets[train]), (inputs[test], targets[test])


def build(settings: Settings) -> nn.Module:
    (inputs,), width = settings.shape, settings.options["width"]
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 1))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, targets)


def metrics(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    return {"mae": SCALE * (outputs - targets).abs().mean(dim=1)}


def answer(outputs: Tensor) -> list[float]:
    return [round(SCALE * each, 1) for each in outputs.squeeze(1).tolist()]
