"""Scripts of TensorFlow, with its real package: `make .tools/.tensorflow` installs it."""

import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sandbox import ROOT
from tests.trainer.hosts import Hosts, Task, hosts, wait_until
from trainer.contract import events

pytestmark = pytest.mark.long
PYTHON = ROOT / ".tools" / "tensorflow" / "bin" / "python"
SCRIPT = Path(__file__).with_name("mirrored.py")


@dataclass
class Cluster:
    """Hosts that run a script of TensorFlow together."""

    local: Hosts

    def write(self, command: Sequence[str]) -> Path:
        job = self.local.folder / "line.json"
        content = {"name": "line", "framework": "tensorflow", "command": command}
        job.write_text(json.dumps(content))
        return job

    def start(self, names: Sequence[str], command: Sequence[str]) -> list[Task]:
        job, nnodes = self.write(command), f"{len(names)}:{len(names)}"
        self.endpoint = self.local.rendezvous(script=True)
        return [self.host(name, job, nnodes) for name in names]

    def host(self, name: str, job: Path, nnodes: str) -> Task:
        saved = self.local.folder / "saved"
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
        return self.local.agent(name, job, self.endpoint, 1, nnodes, SAVED=saved, **quiet)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if not PYTHON.exists() and not os.environ.get("CI"):
        pytest.skip("TensorFlow is not installed for tests: make .tools/.tensorflow")
    with hosts(tmp_path, python=str(PYTHON)) as local:
        yield Cluster(local)


def losses(task: Task) -> dict[int, float]:
    """The loss of each step, as the last process has printed it."""
    return {int(n): float(loss) for n, loss in re.findall(r"step (\d+) loss (\S+)", task.text)}


def test_hosts_train_together_and_one_that_was_lost_returns(cluster: Cluster) -> None:
    command = [str(SCRIPT), "60", "0.2"]
    first, second = cluster.start(["n2", "n10"], command)
    wait_until(lambda: 5 in losses(first), "a few steps")
    assert "worker 0 of 2 replicas, begins at 0" in first.text
    assert "worker 1 of 2 replicas, begins at 0" in second.text
    second.end()
    first.expect("stops its workers: n10 has closed its connection")
    again = cluster.host("n10", cluster.write(command), "2:2")
    for task in (first, again):
        assert task.wait() == 0
        assert task.text.rstrip().endswith("slope 3.0000")
    begins = [int(number) for number in re.findall(r"begins at (\d+)", first.text)]
    assert begins[0] == 0
    assert begins[-1] > 5, "the chief's checkpoint was not read"
    # Rounding aside, both have the mean of the gradients of different points.
    late, early = losses(first), losses(again)
    assert {number: late[number] for number in early} == pytest.approx(early, abs=1e-6)
    assert {each.world_size for each in first.of(events.Member)} == {2}
    assert [each.rank for each in again.of(events.Member)] == [1]


def test_one_host_is_given_no_cluster(cluster: Cluster) -> None:
    [task] = cluster.start(["n1"], [str(SCRIPT), "3"])
    assert task.wait() == 0
    assert "worker 0 of 1 replicas, begins at 0" in task.text
    assert sorted(losses(task)) == [0, 1, 2]


def test_a_mistake_in_the_script_is_told(cluster: Cluster) -> None:
    script = cluster.local.folder / "broken.py"
    script.write_text("import no_such_module\n")
    [task] = cluster.start(["n1"], [str(script)])
    assert task.wait() == 2
    [failed] = task.of(events.Failed)
    assert "rank 0 failed, exit code 1: ModuleNotFoundError: No module named" in failed.message
    assert failed.kind == "input"


def test_a_signal_reaches_the_script(cluster: Cluster) -> None:
    script = cluster.local.folder / "stops.py"
    script.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('saves its last step') or 0))\n"
        "print('trains', flush=True)\n"
        "time.sleep(600)\n"
    )
    [task] = cluster.start(["n1"], [str(script)])
    task.expect("trains")
    task.process.send_signal(signal.SIGTERM)
    assert task.wait() == 128 + signal.SIGTERM
    assert "saves its last step" in task.text
