"""Agrees on checkpoints and fetches them, without a training: peers.py CASES.json

The file has a list of cases. `folders` of a case has the folder of each rank: ranks with one folder
share a host. Each rank prints as JSON what it has sent. The ranks in `damage` flip a bit of each
piece that they send. On the first start, the rank `death` is killed before it sends pieces from
number `piece` on.
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record
from torch.futures import Future

from trainer.checkpoints import fetch
from trainer.checkpoints.newest import newest_of_all
from trainer.core.job import load_job
from trainer.parallel.world import World, join_world, leave_world


@dataclass(frozen=True)
class Case:
    """The hosts of a fetch, and their faults."""

    folders: Sequence[str]
    damage: Sequence[int] = ()
    death: int | None = None
    piece: int = 0
    sent: Counter[int] = field(default_factory=Counter)  # Bytes by receiver.


case = Case(())
plain_send = World.send


def send(world: World, content: Tensor, rank: int, tag: int) -> Future[bool]:
    """Count what is sent, damage it, or die."""
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if world.rank == case.death and first and tag >= case.piece:
        time.sleep(0.5)  # The pieces before are on their way.
        os.kill(os.getpid(), signal.SIGKILL)
    case.sent[rank] += content.numel()
    if world.rank in case.damage:
        content = content.clone()
        content[len(content) // 2] ^= 1
    return plain_send(world, content, rank, tag)


# Small checkpoints need several batches, too; benchmarks have it as it is.
fetch.BATCH = int(os.environ.get("PEERS_BATCH", str(fetch.BATCH)))
World.send = send  # type: ignore[assignment, method-assign]


@record
def main(file: str) -> None:
    """Agree and fetch, one case after the other."""
    global case
    job, joined = (
        load_job(Path(os.environ["KIT_JOB"])),
        join_world(os.environ, timedelta(seconds=60)),
    )
    for number, content in enumerate(json.loads(Path(file).read_text())):
        case = Case(**content)
        folder, before = Path(case.folders[joined.rank]), case.folders[: joined.rank]
        world = replace(joined, host=folder.name, local_rank=before.count(str(folder)))
        world = replace(world, names=tuple(world.gather(world.name)))
        began = time.monotonic()
        found = newest_of_all(folder, job, world)
        state = found.saved.state if found else b""
        report = {
            "case": number,
            "rank": world.rank,
            "seconds": time.monotonic() - began,
            "sent": case.sent,
            "sha256": hashlib.sha256(state).hexdigest(),
        }
        sys.stdout.write(f"peers: {json.dumps(report)}\n")
        sys.stdout.flush()
    leave_world(joined)


if __name__ == "__main__":
    main(sys.argv[1])
