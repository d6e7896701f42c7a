"""TensorBoard's event files, an option of the job: `train: {tensorboard: true}`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

MISSING = (
    "train.tensorboard: this image has no tensorboard; build it with `kit image build`, add "
    "`pip install tensorboard` to yours, or leave the key out"
)


def board_fault() -> str:
    """Return why TensorBoard's files cannot be written; empty if they can."""
    return "" if importlib.util.find_spec("tensorboard") else MISSING


class Board:
    """Writes scalars to a folder that TensorBoard reads."""

    def __init__(self, folder: Path) -> None:
        # torch's writer needs the package tensorboard. The import takes a second.
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def add(self, name: str, value: float, step: int) -> None:
        """Add a value of a step."""
        self._writer.add_scalar(name, value, step)

    def add_epoch(self, values: dict[str, Any], step: int) -> None:
        """Add the figures of an epoch that are known."""
        names = {
            "accuracy": "accuracy/validation",
            "validation_loss": "loss/validation",
            "images_per_second": "speed/images_per_second",
            "tokens_per_second": "speed/tokens_per_second",
            "mfu": "speed/mfu",
        }
        for name, tag in names.items():
            if values.get(name) is not None:
                self.add(tag, values[name], step)
        self._writer.flush()

    def close(self) -> None:
        """Write the scalars that are still in memory."""
        self._writer.close()
