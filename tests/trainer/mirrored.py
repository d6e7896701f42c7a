"""A script of TensorFlow: a line fitted to points, by all workers together.

mirrored.py STEPS [SECONDS for each]. The chief (worker 0) saves every step below $SAVED, and all
workers resume from what it has saved. Prints a line for each step.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

several = "TF_CONFIG" in os.environ
kind = tf.distribute.MultiWorkerMirroredStrategy if several else tf.distribute.MirroredStrategy
strategy = kind()
index: int = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if several else 0
with strategy.scope():
    slope, step = tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
folder = Path(os.environ["SAVED"], f"worker-{index}")
saver = tf.train.CheckpointManager(tf.train.Checkpoint(slope=slope, step=step), folder, 2)
# Each worker reads the chief's files; real scripts have them on shared storage.
saver.checkpoint.restore(tf.train.latest_checkpoint(str(folder.with_name("worker-0"))))
begin = int(step.numpy())
print(f"worker {index} of {strategy.num_replicas_in_sync} replicas, begins at {begin}")


@tf.function  # type: ignore[untyped-decorator]
def fit(values: Any) -> Any:
    """One step of gradient descent on the mean over all replicas; return the loss."""

    def own() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((slope * values - 3 * values) ** 2)
        gradient = tape.gradient(loss, slope)
        mean = tf.distribute.get_replica_context().all_reduce("mean", gradient)
        slope.assign_sub(0.1 * mean)
        return loss

    return strategy.reduce("mean", strategy.run(own), axis=None)


for number in range(begin, int(sys.argv[1])):
    time.sleep(float((sys.argv[2:] or ["0"])[0]))
    points = tf.constant([1.0, index + 1.0])  # Other ones on each worker.
    print(f"step {number} loss {fit(points).numpy():.6f}", flush=True)
    step.assign(number + 1)
    saver.save()  # Also on other workers: it takes part in reading their variables.
print(f"slope {slope.numpy():.4f}")
