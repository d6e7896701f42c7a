"""Accelerate: a line fitted to points. with_accelerate.py STEPS [SECONDS for each]."""

import os
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
model = nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.arange(1.0, 13.0)[:, None] / 12
loader = DataLoader(TensorDataset(inputs, 3 * inputs), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

file, step = Path(os.environ["SAVED"]), 0
if file.exists():
    saved = torch.load(file, weights_only=True)
    accelerator.unwrap_model(model).load_state_dict(saved["model"])
    step = saved["step"]
print(f"rank {accelerator.process_index} of {accelerator.num_processes}, begins at {step}")
while step < int(sys.argv[1]):
    time.sleep(float((sys.argv[2:] or ["0"])[0]))
    for some, wanted in loader:
        loss = nn.functional.mse_loss(model(some), wanted)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    step += 1
    accelerator.save({"model": accelerator.unwrap_model(model).state_dict(), "step": step}, file)
    accelerator.print(f"step {step} loss {loss.item():.6f}")
accelerator.end_training()
