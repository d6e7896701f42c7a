"""Metrics for Prometheus: of real trainings and scripts, read over HTTP by a foreign parser."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.ports import free_port
from tests.trainer.hosts import ENDLESS, PACE, Task, hosts, wait_until, write_job
from trainer.contract.metrics import LAUNCHER, METRICS, QUEUE, RANK, STATES, TRAINER
from trainer.contract.queue_events import Allocated
from trainer.launcher.metrics import GPU_SECONDS, GPUS, INFO, START, STOP, WAITED, WORKERS

SMI = """#!/bin/sh
case $1 in
    -L) echo 'GPU 0: A100 (UUID: GPU-a)'; echo 'GPU 1: A100 (UUID: GPU-b)' ;;
    *) echo 'GPU-a, 50, 1024, 40960, 61, 250.50'; echo 'GPU-b, [N/A], 2048, 40960, 62, 200.00' ;;
esac
"""


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def scrape(port: int) -> dict[str, Metric]:
    """The families by the name that the contract has."""
    found = {}
    for family in text_string_to_metric_families(page(port)):
        found[family.name + ("_total" if family.type == "counter" else "")] = family
    return found


def values(family: Metric, **labels: str) -> list[float]:
    return [s.value for s in family.samples if labels.items() <= s.labels.items()]


def wait_for_steps(port: int, ranks: int, task: Task) -> None:
    def there() -> bool:
        assert task.process.poll() is None, task.text
        try:
            family = scrape(port).get("kit_train_steps_total")
        except OSError:
            return False
        return family is not None and len(family.samples) == ranks

    wait_until(there, "steps of all ranks in the metrics")


def test_all_ranks_of_a_host_share_a_port(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    job = write_job(tmp_path, **ENDLESS, every_epochs=2)
    with hosts(tmp_path) as local:
        end = local.rendezvous()
        tasks = [
            local.agent(name, job, end, number, KIT_METRICS_PORT=str(port), **PACE)
            for name, number, port in zip(("pc1", "pc2"), (1, 2), ports, strict=True)
        ]
        for port, number, task in zip(ports, (1, 2), tasks, strict=True):
            wait_for_steps(port, number, task)
        saved = "kit_train_checkpoint_timestamp_seconds"  # The last metric to come.
        wait_until(lambda: any(saved in scrape(port) for port in ports), "a checkpoint")
        losses = "kit_train_validation_loss"
        # Each rank writes at times of its own: both of pc2 are in the same epoch now and then.
        wait_until(
            lambda: len(set(values(scrape(ports[1]).get(losses, NONE)))) == 1, "one loss of all"
        )
        first, second = map(scrape, ports)
    for found in (first, second):
        assert found.keys() <= METRICS.keys()
        for name, family in found.items():
            assert family.type == METRICS[name].kind
            for sample in family.samples:
                assert sample.labels.keys() - {"le"} == set(METRICS[name].labels)
                assert sample.labels["job"] == "digits"
    # Without a GPU, a queue and skipped steps, all others are there but those of texts.
    missing = set(METRICS) - first.keys() - second.keys()
    of_texts = {"kit_train_tokens_total", "kit_train_mfu_ratio"}
    of_queue = {each.name for each in QUEUE}
    assert missing == {name for name in METRICS if "gpu" in name} | of_texts | of_queue
    ranks = [s.labels["rank"] for f in (first, second) for s in f["kit_train_step"].samples]
    assert sorted(ranks) == ["0", "1", "2"]
    assert values(second["kit_worker_world_size"]) == [3, 3]
    (count,) = [s.value for s in first["kit_train_step_seconds"].samples if s.name[-6:] == "_count"]
    assert values(first["kit_train_steps_total"]) == [count]
    assert 0 < values(first["kit_train_validation_accuracy_ratio"])[0] <= 1
    assert values(second[losses])[0] > 0
    shares = values(first["kit_train_time_ratio"])
    assert abs(sum(shares) - 1) < 0.001
    assert len(shares) == 3


NONE = Metric("none", "", "counter")


def steps(found: dict[str, Metric]) -> float:
    """The step that all ranks have reached."""
    return min(values(found.get("kit_train_step", NONE)), default=0)


def goodput_of(found: dict[str, Metric], rank: str) -> tuple[dict[str, float], float]:
    """The seconds of each state, and the wall time that they must add up to."""
    states = {
        s.labels["state"]: s.value
        for s in found["kit_train_seconds_total"].samples
        if s.labels["rank"] == rank
    }
    (written,) = values(found["kit_train_update_time_seconds"], rank=rank)
    return states, written - values(found["kit_launcher_start_time_seconds"])[0]


def test_the_states_add_up_to_wall_time_over_a_restart(tmp_path: Path) -> None:
    port = free_port()
    job = write_job(tmp_path, **ENDLESS, every_epochs=9999, port=port)
    with hosts(tmp_path, cold=True) as local:
        task = local.agent("pc1", job, local.rendezvous("1:1"), 2)
        wait_for_steps(port, 2, task)
        time.sleep(3)
        before = scrape(port)
        states, wall = goodput_of(before, "1")
        assert abs(sum(states.values()) - wall) < 0.02 * wall, states
        assert states.keys() == STATES.keys()
        assert states["lost"] == 0
        assert min(states["useful"], states["exchange"], states["restart"]) > 0
        os.kill(task.workers()[0], signal.SIGKILL)

        def again() -> bool:
            try:
                found = scrape(port)
            except OSError:
                return False
            counts = values(found.get("kit_worker_restarts_total", NONE))
            return sorted(counts) == [0, 1] and steps(found) > steps(before) + 5

        wait_until(again, "steps after the restart")
        after = scrape(port)
        for rank in "01":
            states, wall = goodput_of(after, rank)
            assert abs(sum(states.values()) - wall) < 0.02 * wall, states
            assert states["restart"] > 0
            assert states["lost"] < 0.5  # The step in which the rank was lost.


def test_a_job_that_is_stopped_says_so_to_its_reader_before_it_ends(tmp_path: Path) -> None:
    port = free_port()
    job = write_job(tmp_path, **ENDLESS, every_epochs=9999, port=port)
    with hosts(tmp_path) as local:
        task = local.agent("pc1", job, local.rendezvous("1:1"), 2, **PACE)
        wait_for_steps(port, 2, task)
        assert values(scrape(port)["kit_launcher_stop_time_seconds"]) == [0]
        before = time.time()
        os.kill(task.process.pid, signal.SIGTERM)
        task.expect("launch pc1: ended on SIGTERM")  # The ranks have saved, and are gone.
        found = scrape(port)
        assert before <= values(found["kit_launcher_stop_time_seconds"])[0] <= time.time()
        assert "kit_train_step" not in found
        assert task.wait() == 128 + signal.SIGTERM


def test_a_script_has_the_launchers_share(tmp_path: Path) -> None:
    port, program = free_port(), tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    script = tmp_path / "own.py"
    script.write_text("import time\ntime.sleep(600)\n")
    job = tmp_path / "own.json"
    job.write_text(json.dumps({"name": "own", "command": [str(script)], "metrics": {"port": port}}))
    more = {"NVIDIA_VISIBLE_DEVICES": "all", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    since = time.time() - 100
    more |= {"KIT_OWNER": 'an"na', "KIT_PRIORITY": "50"}
    more |= {"KIT_SINCE": f"{since:.3f}", "KIT_WAITED": "12.5"}
    with hosts(tmp_path) as local:
        endpoint = local.rendezvous(script=True)
        task = local.agent("pc1", job, endpoint, 2, "1:1", **more)
        task.expect(f"metrics at http://127.0.0.1:{port}/metrics")
        wait_until(lambda: all(f'rank="{each}"' in page(port) for each in "01"), "both workers")
        found = scrape(port)
        used = 2 * (time.time() - since)
        # Another job on the same port does without, and says so.
        other = local.agent("pc2", job, endpoint, 1, "1:1")
        other.expect(f"warning: no metrics at 127.0.0.1:{port}: Address already in use")
    assert found.keys() == {each.name for each in (*LAUNCHER, *QUEUE)}
    assert 200 <= values(found["kit_job_gpu_seconds_total"], owner='an"na')[0] <= used
    assert values(found["kit_job_waited_seconds"], job="own", host="pc1") == [12.5]
    assert values(found["kit_job_info"], owner='an"na', priority="50") == [1]
    (given,) = task.of(Allocated)
    assert (given.owner, given.gpus, given.waited) == ('an"na', 2, 12.5)
    assert "launch pc1: is an\"na's, has priority 50, and has waited for 12 s" in task.text
    started = found["kit_worker_start_time_seconds"].samples
    assert [(s.labels["rank"], s.labels["gpu"]) for s in started] == [
        ("0", "GPU-a"),
        ("1", "GPU-b"),
    ]
    assert all(0 <= time.time() - s.value < 300 for s in started)
    assert values(found["kit_gpu_utilization_ratio"]) == [0.5]
    assert values(found["kit_gpu_memory_used_bytes"], gpu="GPU-b") == [2**31]
    assert values(found["kit_gpu_power_watts"]) == [250.5, 200.0]


def test_the_launcher_names_metrics_as_the_contract_does() -> None:
    gpus = (family for _, family in GPUS.values())
    own = [START, STOP, *WORKERS.values(), *gpus]
    assert own == [(each.name, each.kind, each.meaning) for each in LAUNCHER]
    assert [(each.name, each.kind, each.meaning) for each in QUEUE] == [INFO, WAITED, GPU_SECONDS]


def test_names_follow_the_conventions() -> None:
    for metric in METRICS.values():
        assert metric.name.startswith("kit_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        base = metric.name.removesuffix("_total")
        units = {"s": "_seconds", "s since 1970": "_seconds", "byte": "_bytes", "0 to 1": "_ratio"}
        assert base.endswith(units.get(metric.unit, ""))
    assert all(set(RANK) <= set(each.labels) for each in TRAINER)
