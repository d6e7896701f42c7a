"""Compares the training of a language model with nanoGPT's loop: the ratio of tokens/s.

    git clone https://github.com/karpathy/nanoGPT
    python -m tests.bench_language nanoGPT [--repeats N] [--steps N] [--compile]

Both train the same model on the same text of characters, with the same batch, optimizer and
precision, in this process. nanoGPT's train.py is executed as it is, in a thread that waits between
its steps while the other side has its turn. So other load hardly affects the ratio: it is the
median of the ratios of all turns, followed by the least and the greatest.

On a CPU the sizes are those of nanoGPT's README for one, else those of its train_shakespeare_char.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import shutil
import sys
import tempfile
import threading
from contextlib import chdir
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed

from tests.epochs import FOREVER, Epochs, timed
from tests.turns import compare, turns
from trainer.contract.job import Train
from trainer.data.load import load_data
from trainer.data.samples import DataSet
from trainer.parallel.world import join_world

TEXT = "the quick brown fox jumps over a lazy dog and then it goes home to sleep well"
FILE = "text.txt"
RATE, DECAY = 1e-3, 0.1


class Size(NamedTuple):
    """A model, and the samples of a step."""

    layers: int
    heads: int
    width: int
    context: int
    batch: int


CPU, GPU = Size(4, 4, 128, 64, 12), Size(6, 6, 384, 256, 64)


class Nano:
    """nanoGPT's loop, which goes on by so many steps at a time."""

    def __init__(self, folder: Path, size: Size, *, cuda: bool, compiled: bool) -> None:
        """`folder` is a copy of nanoGPT with the data in data/bench."""
        self._folder, self._turn, self._done = folder, threading.Semaphore(0), threading.Event()
        self._left, self.failure = 0, ""
        self.words = [
            "--dataset=bench", f"--device={'cuda' if cuda else 'cpu'}", f"--compile={compiled}",
            f"--dtype={'bfloat16' if cuda else 'float32'}", "--gradient_accumulation_steps=1",
            f"--n_layer={size.layers}", f"--n_head={size.heads}", f"--n_embd={size.width}",
            f"--block_size={size.context}", f"--batch_size={size.batch}", "--dropout=0.0",
            f"--learning_rate={RATE}", "--decay_lr=False", "--grad_clip=1.0", "--eval_iters=1",
            f"--weight_decay={DECAY}", "--eval_interval=1000000000", "--max_iters=1000000000",
        ]  # fmt: skip
        threading.Thread(target=self._train, daemon=True).start()

    def run(self, steps: int) -> None:
        """Take so many steps."""
        self._left = steps
        self._done.clear()
        self._turn.release()
        self._done.wait()
        if self.failure:
            raise SystemExit(f"nanoGPT: {self.failure}")

    def _train(self) -> None:
        self._turn.acquire()
        try:
            source = (self._folder / "train.py").read_text()
            exec(compile(source, "train.py", "exec"), {"__name__": "train", "print": self._print})
        except BaseException as error:  # In a thread of its own, nobody else would tell it.
            self.failure = repr(error)
            self._done.set()

    def _print(self, text: str, *_: object) -> None:
        """Count the lines that train.py prints for each step."""
        if not text.startswith("iter "):
            return
        self._left -= 1
        if self._left <= 0:
            self._done.set()
            self._turn.acquire()


def settings(size: Size, *, compiled: bool) -> Train:
    """What this trainer trains."""
    return Train(
        dataset="text", path=FILE, model="gpt", context=size.context, epochs=FOREVER,
        batch_size=size.batch, optimizer="adamw", learning_rate=RATE, weight_decay=DECAY,
        schedule="constant", clip_norm=1.0, compile=compiled,
        options={"layers": size.layers, "heads": size.heads, "width": size.width},
    )  # fmt: skip


def write_data(folder: Path, nano: Path, size: Size, steps: int) -> DataSet:
    """Write one text for both; its training part is so many batches."""
    draw, needed = random.Random(0), size.batch * size.context * steps
    text = ""
    while len(text) * 9 // 10 <= needed:
        text += " ".join(draw.choices(TEXT.split(), k=10_000)) + "\n"
    text = text[: (needed + 1) * 10 // 9 + 10]
    (folder / FILE).write_text(text)
    data = load_data(
        Train(dataset="text", path=FILE, model="gpt", context=size.context, epochs=1, batch_size=1),
        folder,
    )
    place = nano / "data" / "bench"
    place.mkdir(parents=True)
    numbers = np.array([data.labels.index(each) for each in text], np.uint16)
    numbers[: len(numbers) * 9 // 10].tofile(place / "train.bin")
    numbers[len(numbers) * 9 // 10 :].tofile(place / "val.bin")
    (place / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": data.classes}))
    return data


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_language", description=__doc__)
    parser.add_argument("nanogpt", type=Path, help="a clone of github.com/karpathy/nanoGPT")
    parser.add_argument("--repeats", type=int, default=15, help="turns of each side")
    parser.add_argument("--steps", type=int, default=50, help="of a turn")
    parser.add_argument("--compile", action="store_true", help="torch.compile on both sides")
    given = parser.parse_args()
    if not (given.nanogpt / "train.py").is_file():
        parser.error(f"{given.nanogpt} has no train.py: git clone the repository there")
    cuda = torch.cuda.is_available()
    size = GPU if cuda else CPU
    with tempfile.TemporaryDirectory() as name:
        folder, nano = Path(name), Path(name, "nanoGPT")
        shutil.copytree(given.nanogpt, nano, ignore=shutil.ignore_patterns(".git", "data"))
        data = write_data(folder, nano, size, given.steps)
        world = join_world({"KIT_HOST": "bench"}, timedelta(seconds=60))
        theirs = Nano(nano, size, cuda=cuda, compiled=given.compile)
        run_epoch = Epochs(world, data, settings(size, compiled=given.compile), folder)
        tokens = size.batch * size.context * given.steps
        assert len(data.train) == size.batch * given.steps
        sides = {
            "this trainer": timed(tokens, run_epoch, world.device),
            "nanoGPT": timed(tokens, lambda: theirs.run(given.steps), world.device),
        }
        sys.path.insert(0, str(nano))  # train.py imports model.py, and reads below its folder.
        sys.argv[1:] = theirs.words
        with chdir(nano):
            turns(1, sides)
            found: dict[str, Any] = turns(given.repeats, sides)
    distributed.destroy_process_group()
    device = torch.cuda.get_device_name() if cuda else f"{os.cpu_count()} cores"
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, {size}")
    for side, rates in found.items():
        print(f"  {side:<42}{np.median(rates):>10,.0f} tokens/s")
    compare(
        "this trainer / nanoGPT", found["this trainer"], found["nanoGPT"], "tokens/s, aim >= 1.0"
    )
    sys.stdout.flush()
    os._exit(0)  # The thread waits for its next turn.


if __name__ == "__main__":
    main()
