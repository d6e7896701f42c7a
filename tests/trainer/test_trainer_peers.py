"""Hosts fetch a checkpoint from all hosts that have it: real processes, each with a folder."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.disks import on_small_disk
from tests.ports import free_port
from tests.trainer.hosts import ROOT, Hosts, Task, complete_steps, hosts, write_job
from trainer.checkpoints import format as checkpoint
from trainer.checkpoints.fetch import PIECE, path, senders_of
from trainer.checkpoints.format import Progress, Saved
from trainer.core.job import load_job

SCRIPT = Path(__file__).with_name("peers.py")
NAME, SIZE = "step-00000090", 25.2
"""The checkpoint's name, and its size in MB."""


def start(
    local: Hosts, cases: list[dict[str, Any]], prefix: Sequence[str] = (), restarts: int = 0
) -> Task:
    """Start as many ranks as the first case has folders."""
    file = local.folder / "cases.json"
    file.write_text(json.dumps(cases))
    torchrun = ["-m", "torch.distributed.run", "--max-restarts", str(restarts)]
    torchrun += ["--nproc-per-node", str(len(cases[0]["folders"]))]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    # As launch.py has it: otherwise a restarted group finds the addresses of the first.
    share = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environ = {
        "KIT_JOB": str(write_job(local.folder)),
        "PYTHONPATH": str(ROOT),
        "PEERS_BATCH": "8",
        **share,
    }
    return local.start("peers", [*torchrun, str(SCRIPT), str(file)], environ, prefix=prefix)


def reports(task: Task, case: int) -> list[dict[str, Any]]:
    """What the ranks reported of a case, by rank."""
    lines = [json.loads(line[7:]) for line in task.text.splitlines() if line.startswith("peers: ")]
    found = sorted((each for each in lines if each["case"] == case), key=lambda each: each["rank"])
    return [{**each, "sent": {int(k): v for k, v in each["sent"].items()}} for each in found]


def make(folder: Path) -> Saved:
    """A checkpoint of 24 pieces and a bit, each different."""
    job = load_job(write_job(folder))
    values = torch.rand(24 * PIECE // 4, generator=torch.Generator().manual_seed(0))
    progress = Progress(6, 0, 90)
    state = {"weights": values, "progress": vars(progress), "rng": [{"cpu": torch.get_rng_state()}]}
    return checkpoint.pack(state, progress, job, 3)


def cluster(folder: Path, saved: Saved, names: str, with_copy: str) -> list[str]:
    """The folders of hosts, some of them with the checkpoint."""
    folder.mkdir(exist_ok=True)
    job = load_job(write_job(folder))
    for name in names.split():
        (folder / name).mkdir(exist_ok=True)
        if name in with_copy.split():
            checkpoint.write(folder / name, saved, job, keep=3)
    return [str(folder / name) for name in names.split()]


def require_copy(folder: Path, saved: Saved) -> None:
    assert (folder / NAME / "state.pt").read_bytes() == saved.state
    assert (folder / NAME / "manifest.json").read_bytes() == saved.manifest
    assert complete_steps(folder) == [NAME]
    assert not list(folder.glob(".*"))


@dataclass(frozen=True)
class Fetched:
    """Several cases of four ranks that have ended well."""

    folder: Path
    saved: Saved
    task: Task

    def sent(self, case: str) -> list[dict[int, int]]:
        """The bytes that each rank has sent in a case, by receiver; all ranks have the state."""
        found = reports(self.task, list(CASES).index(case))
        right = hashlib.sha256(self.saved.state).hexdigest()
        assert [each["sha256"] for each in found] == [right] * 4
        for name in CASES[case][0].split():
            require_copy(self.folder / CASES[case][2] / name, self.saved)
        return [each["sent"] for each in found]


CASES = {
    "first joins": ("pc1 pc2 pc3 pc4", "pc2 pc3 pc4", "a"),
    "again": ("pc1 pc2 pc3 pc4", "", "a"),
    "last joins": ("pc1 pc2 pc3 pc4", "pc1 pc2 pc3", "b"),
    "three join": ("pc1 pc2 pc3 pc4", "pc2", "c"),
    "ranks share": ("pc1 pc1 pc2 pc2", "pc2", "d"),
    "damaged copy": ("pc1 pc2 pc3 pc4", "pc1 pc2", "e"),
    "damaged pieces": ("pc1 pc2 pc3 pc4", "pc2 pc3 pc4", "f"),
    "older drafts": ("pc1 pc2 pc3 pc4", "pc3 pc4", "g"),
}
"""The host of each rank, the hosts with a copy before, and the folder of hosts."""
BROKEN = f"e/pc1/{NAME}/state.pt"


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Fetched:
    folder = tmp_path_factory.mktemp("peers")
    saved = make(folder)
    cases: list[dict[str, Any]] = [
        {"folders": cluster(folder / place, saved, names, with_copy)}
        for names, with_copy, place in CASES.values()
    ]
    content = bytearray(saved.state)
    content[5 * PIECE + 7] ^= 1
    (folder / BROKEN).write_bytes(content)
    cases[list(CASES).index("damaged pieces")]["damage"] = [1]
    for name, size in ((NAME, 30 * PIECE), ("step-00000080", 9)):
        draft = folder / "g" / "pc1" / f".fetching-{name}"
        draft.mkdir()
        (draft / "state.pt").write_bytes(b"\1" * size)
    with hosts(folder) as local:
        task = start(local, cases)
        assert task.wait() == 0, task.text
    return Fetched(folder, saved, task)


@pytest.mark.parametrize(("case", "new"), [("first joins", 0), ("last joins", 3)])
def test_a_host_that_joins_fetches_from_all_others(fetched: Fetched, case: str, new: int) -> None:
    """Rank 0 has no other part in it than other ranks."""
    sent = fetched.sent(case)
    assert sent[new] == {}
    assert all(set(each) <= {new} for each in sent)
    others = [each[new] for rank, each in enumerate(sent) if rank != new]
    assert sum(others) == len(fetched.saved.state)
    assert max(others) - min(others) <= PIECE
    assert f"pc{new + 1}: fetches {NAME} ({SIZE} MB) from rank " in fetched.task.text
    assert f"pc{new + 1}: has {NAME} after " in fetched.task.text


def test_nothing_is_sent_if_all_hosts_have_it(fetched: Fetched) -> None:
    assert fetched.sent("again") == [{}] * 4


def test_hosts_that_join_together_pass_the_pieces_on(fetched: Fetched) -> None:
    sent = fetched.sent("three join")
    # The one host that has it sends each byte once, and no other host sends more.
    assert sum(sent[1].values()) == len(fetched.saved.state)
    assert set(sent[1]) == {0, 2, 3}
    assert all(0 < sum(each.values()) <= len(fetched.saved.state) for each in sent)


def test_a_host_fetches_once_for_all_of_its_ranks(fetched: Fetched) -> None:
    assert fetched.sent("ranks share") == [{}, {}, {0: len(fetched.saved.state)}, {}]


def test_a_damaged_copy_is_replaced_and_never_sent(fetched: Fetched) -> None:
    sent = fetched.sent("damaged copy")
    passed = f"skips {(fetched.folder / BROKEN).parent}: state.pt fails its checksum"
    assert passed in fetched.task.text
    # Rank 0 sends what it has fetched, but its own copy is no source.
    assert sum(sent[1].values()) == len(fetched.saved.state)


def test_pieces_that_arrive_damaged_come_from_another_host(fetched: Fetched) -> None:
    sent = fetched.sent("damaged pieces")
    # Of a batch of eight, a third; after it, rank 1 is no source.
    assert sent[1][0] <= 3 * PIECE
    assert f"of {NAME} from rank 1 on pc2 (cpu) is damaged" in fetched.task.text
    assert fetched.task.text.count("is damaged: it is asked for again") in range(1, 25)


def test_a_draft_of_another_checkpoint_is_of_no_use(fetched: Fetched) -> None:
    assert sum(each.get(0, 0) for each in fetched.sent("older drafts")) == len(fetched.saved.state)


def test_a_fetch_from_damaged_hosts_alone_ends(tmp_path: Path) -> None:
    folders = cluster(tmp_path, make(tmp_path), "pc1 pc2", "pc2")
    with hosts(tmp_path) as local:
        task = start(local, [{"folders": folders, "damage": [1]}])
        assert task.wait() == 1
    assert f"OSError: {NAME}: all ranks that have it have sent damaged pieces" in task.text
    assert complete_steps(tmp_path / "pc1") == []


def test_a_sender_that_dies_costs_only_the_pieces_on_their_way(tmp_path: Path) -> None:
    saved = make(tmp_path)
    folders = cluster(tmp_path, saved, "pc1 pc2 pc3", "pc1 pc2")
    with hosts(tmp_path) as local:
        task = start(local, [{"folders": folders, "death": 0, "piece": 12}], restarts=1)
        assert task.wait() == 0, task.text
    require_copy(tmp_path / "pc3", saved)
    assert f"pc3: fetches {NAME} ({SIZE} MB) from" in task.text
    again = f"pc3: fetches {NAME} ({SIZE} MB, "
    assert again in task.text, "nothing was kept"
    kept = float(task.text.partition(again)[2].split()[0]) * 1e6
    assert kept >= 6 * PIECE
    sent = sum(each["sent"].get(2, 0) for each in reports(task, 0))
    assert sent == pytest.approx(len(saved.state) - kept, abs=PIECE)


def test_a_disk_without_room_is_named_before_a_byte_is_sent(tmp_path: Path) -> None:
    folders = cluster(tmp_path, make(tmp_path), "pc1 pc2", "pc2")
    with hosts(tmp_path) as local:
        task = start(local, [{"folders": folders}], on_small_disk(Path(folders[0]), "10m"))
        assert task.wait() == 1
    full = f"{folders[0]}: {NAME} cannot be fetched: 10.5 MB are free, it needs 26.2 MB"
    assert full in task.text


def test_the_paths_share_the_work() -> None:
    ranks, pieces = [0, 1, 2, 3, 4, 5], 600
    for receivers in ([5], [0, 3], [0, 1, 2, 3], [1, 2, 3, 4, 5]):
        lacking = [set(range(pieces)) if rank in receivers else set() for rank in ranks]
        sends: Counter[int] = Counter()
        for piece in range(pieces):
            found = path(piece, ranks, lacking, ())
            assert found[0] not in receivers
            assert sorted(found[1:]) == receivers
            sends.update(found[:-1])
        # No rank sends more than the whole, and those that have it send equal shares.
        assert max(sends.values()) <= pieces
        holders = [rank for rank in ranks if rank not in receivers]
        assert {sends[rank] for rank in holders} == {pieces // len(holders)}
    # A receiver that has a piece from an earlier fetch is a source of it.
    assert path(7, [0, 1, 2], [{7}, {3}, {7}], ()) == [1, 2, 0]


def test_a_rank_that_damages_pieces_is_found_and_passes_none_on() -> None:
    paths = {0: [3, 0, 1, 2], 1: [4, 1, 2, 0], 2: [3, 2, 0, 1]}
    # Piece 1 was whole at rank 1, and damaged from rank 2 on.
    assert senders_of([{1}, set(), set(), set(), set()], paths) == {2}
    assert senders_of([{0, 1}, {0}, {0, 1}, set(), set()], paths) == {1, 3}
    assert senders_of([set()] * 5, paths) == set()
    lacking = [{7}, {7}, {7}, set(), set()]
    assert path(7, [0, 1, 2, 3, 4], lacking, {2, 3}) == [4, 1, 0, 2]
