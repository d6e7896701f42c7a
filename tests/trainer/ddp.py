"""A user's own script in the shape of PyTorch's tutorial (examples, ddp-tutorial-series,
multigpu_torchrun.py): it knows torchrun and nothing of kit."""

import argparse
import os
import sys
from pathlib import Path

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SNAPSHOT = Path("snapshot.pt")


class Trainer:
    def __init__(self, loader: DataLoader[tuple[torch.Tensor, ...]], save_every: int) -> None:
        self.rank = int(os.environ["RANK"])
        self.loader = loader
        self.save_every = save_every
        self.epochs_run = 0
        model = torch.nn.Linear(20, 3)
        if SNAPSHOT.exists():
            snapshot = torch.load(SNAPSHOT, weights_only=True)
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def run_epoch(self, epoch: int) -> None:
        size = len(next(iter(self.loader))[0])
        sys.stdout.write(
            f"[RANK{self.rank}] Epoch {epoch} | Batchsize: {size} | Steps: {len(self.loader)}\n"
        )
        assert isinstance(self.loader.sampler, DistributedSampler)
        self.loader.sampler.set_epoch(epoch)
        for source, targets in self.loader:
            self.optimizer.zero_grad()
            cross_entropy(self.model(source), targets).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def train(self, total_epochs: int) -> None:
        for epoch in range(self.epochs_run, total_epochs):
            self.run_epoch(epoch)
            if self.rank == 0 and epoch % self.save_every == 0:
                torch.save(
                    {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}, SNAPSHOT
                )


def main(total_epochs: int, save_every: int, batch_size: int) -> None:
    init_process_group("gloo")
    data = TensorDataset(torch.rand(2048, 20), torch.randint(0, 3, (2048,)))
    loader = DataLoader(data, batch_size, shuffle=False, sampler=DistributedSampler(data))
    Trainer(loader, save_every).train(total_epochs)
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", default=32, type=int)
    given = parser.parse_args()
    main(given.total_epochs, given.save_every, given.batch_size)
