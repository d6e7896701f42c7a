"""The training of PyTorch's tutorials, for comparison.

The loop of the DDP tutorial (examples, ddp-tutorial-series, single_gpu.py to multigpu.py) with the
data and the network of the CIFAR-10 one: a Dataset that makes one normalised tensor of one image at
a time, a DataLoader with two worker processes, loss.item() after each step, everything in fp32.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MEAN = DEVIATION = (0.5, 0.5, 0.5)
WORKERS = 2


class Images(Dataset[tuple[Tensor, int]]):
    """Like torchvision's CIFAR10, ToTensor and Normalize, but without Pillow's images."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        """Take uint8 [N, C, S, S] and int64 [N]."""
        self.images = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels: list[int] = labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = torch.from_numpy(np.array(self.images[index], copy=True))
        image = pixels.permute(2, 0, 1).contiguous().to(torch.float32).div(255)
        mean = torch.as_tensor(MEAN).view(-1, 1, 1)
        deviation = torch.as_tensor(DEVIATION).view(-1, 1, 1)
        return image.clone().sub_(mean).div_(deviation), self.labels[index]


class Net(nn.Module):
    """The network of the CIFAR-10 tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        scores: Tensor = self.fc3(x)
        return scores


class Trainer:
    """Trains on one device; a process group must be there."""

    def __init__(self, data: Images, batch_size: int, device: torch.device) -> None:
        self.device = device
        self.sampler: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(data)
        self.loader = DataLoader(
            data,
            batch_size,
            sampler=self.sampler,
            num_workers=WORKERS,
            pin_memory=device.type == "cuda",
        )
        self.model = DistributedDataParallel(Net().to(device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        self.epochs_run = 0

    def run_epoch(self) -> float:
        """Train for one epoch; return the mean loss of its steps."""
        self.sampler.set_epoch(self.epochs_run)
        self.epochs_run += 1
        running_loss = 0.0
        for images, labels in self.loader:
            inputs, targets = images.to(self.device), labels.to(self.device)
            self.optimizer.zero_grad()
            loss = cross_entropy(self.model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            running_loss += loss.item()
        return running_loss / len(self.loader)
