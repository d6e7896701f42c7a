"""DeepSpeed: ZeRO's first stage on a line. with_deepspeed.py STEPS."""

import os
import sys

import deepspeed
import torch
from torch import nn

if not torch.cuda.is_available():
    # DeepSpeed would compile an exchange by shared memory, for minutes; gloo does the same.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo")
model = nn.Linear(1, 1, bias=False)
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    },
)
rank, size = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
folder, begin = os.environ["SAVED"], 0
_, state = engine.load_checkpoint(folder)
begin = state["step"] if state else 0
print(f"rank {rank} of {size}, begins at {begin}", flush=True)
inputs = torch.arange(1.0, 13.0)[rank::size, None] / 12
for step in range(begin, int(sys.argv[1])):
    loss = nn.functional.mse_loss(engine(inputs), 3 * inputs)
    engine.backward(loss)
    engine.step()
    print(f"step {step + 1} loss {loss.item():.6f}", flush=True)
    engine.save_checkpoint(folder, client_state={"step": step + 1})
