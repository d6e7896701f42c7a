"""A job's script: the time of an all-reduce of so many bytes, over the job's network."""

import statistics
import sys
import time

import torch
from torch import distributed

ROUNDS = 10

distributed.init_process_group("gloo")
for mebibytes in map(int, sys.argv[1:]):
    values = torch.ones(mebibytes * 2**18)
    seconds = []
    for _ in range(ROUNDS + 1):
        distributed.barrier()
        began = time.monotonic()
        distributed.all_reduce(values)
        seconds.append(time.monotonic() - began)
    if distributed.get_rank() == 0:
        # The first round opens connections.
        sys.stdout.write(f"allreduce {mebibytes} {statistics.median(seconds[1:]):.4f}\n")
distributed.destroy_process_group()
