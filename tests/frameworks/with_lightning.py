"""Lightning: a line fitted to points. with_lightning.py EPOCHS."""

import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):  # type: ignore[misc]
    """A slope."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1, bias=False)

    def training_step(self, batch: Any, _: int) -> Any:
        """The mean squared error of a batch."""
        return nn.functional.mse_loss(self.line(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def on_train_start(self) -> None:
        """Print where the training begins."""
        place = f"rank {self.trainer.global_rank} of {self.trainer.world_size}"
        print(f"{place}, begins at {self.current_epoch}", flush=True)

    def on_train_epoch_end(self) -> None:
        """Print the slope."""
        print(f"step {self.current_epoch + 1} slope {self.line.weight.item():.4f}", flush=True)


inputs = torch.arange(1.0, 13.0)[:, None] / 12
folder = Path(os.environ["SAVED"])
trainer = lightning.Trainer(
    accelerator="cpu" if not torch.cuda.is_available() else "gpu",
    # As torchrun has started them: Lightning does not find these by itself.
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=int(sys.argv[1]),
    callbacks=[ModelCheckpoint(folder, "snapshot", enable_version_counter=False)],
    logger=False,
    enable_progress_bar=False,
)
last = folder / "snapshot.ckpt"
trainer.fit(
    Line(),
    DataLoader(TensorDataset(inputs, 3 * inputs), batch_size=4),
    ckpt_path=last if last.exists() else None,
)
