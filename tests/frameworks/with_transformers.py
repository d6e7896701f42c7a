"""Trainer of Hugging Face: a small GPT-2 that repeats numbers. with_transformers.py STEPS."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

torch.manual_seed(0)
config = GPT2Config(vocab_size=16, n_positions=32, n_embd=32, n_layer=1, n_head=2)
data = [{"input_ids": (torch.arange(32) + k) % 16} for k in range(96)]
data = [each | {"labels": each["input_ids"]} for each in data]
folder = os.environ["SAVED"]
arguments = TrainingArguments(
    output_dir=folder,
    max_steps=int(sys.argv[1]),
    per_device_train_batch_size=4,
    learning_rate=1e-2,
    logging_steps=5,
    save_steps=5,
    save_total_limit=2,
    report_to="none",
    disable_tqdm=True,
)
trainer: Any = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data)
last = get_last_checkpoint(folder) if Path(folder).is_dir() else None
begin = int(last.rpartition("-")[2]) if last else 0
print(f"rank {arguments.process_index} of {arguments.world_size}, begins at {begin}", flush=True)
trainer.train(resume_from_checkpoint=last)
print(f"step {trainer.state.global_step} loss {trainer.state.log_history[-2]['loss']}")
