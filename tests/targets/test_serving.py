"""Servers on this machine: a real training, a real server, GPUs that a stand-in lists."""

from __future__ import annotations

import json
import os
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.sandbox import ROOT
from tests.targets.cluster import Cluster, wait_for

GPUS = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(3)]
INVENTORY = f"""\
cluster: test
hosts:
  pc1:
    address: 192.168.8.151
    gpus:
      - {{uuid: {GPUS[0]}}}
      - {{uuid: {GPUS[1]}}}
      - {{uuid: {GPUS[2]}}}
"""
JOB = """\
train: {dataset: digits, model: cnn, epochs: EPOCHS, batch_size: 32, learning_rate: 0.05}
environment: {OMP_NUM_THREADS: "1"}
"""


@pytest.fixture
def served(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> tuple[Cluster, str]:
    """A project with a job and its server on a machine with three GPUs, and the server's URL."""
    tools = cluster.folder / "bin"
    tools.mkdir()
    lines = "".join(f"GPU {n}: TITAN RTX (UUID: {uuid})\\n" for n, uuid in enumerate(GPUS))
    (tools / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KIT_DEVICE", "cpu")
    (cluster.folder / "inventory.yaml").write_text(INVENTORY)
    cluster.job("digits", JOB.replace("EPOCHS", "3"))
    port = free_port()
    server: Path = cluster.folder / "serve" / "digits.yaml"
    server.parent.mkdir()
    server.write_text(f"image: none\njob: digits\nport: {port}\n")
    return cluster, f"http://127.0.0.1:{port}"


def post(url: str, content: Any) -> Any:
    body, kind = json.dumps(content).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, kind), timeout=30) as answer:
        return json.loads(answer.read())


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())


def told(cluster: Cluster) -> dict[str, Any]:
    return dict(json.loads(cluster.kit("status", "--json")))


def test_a_job_and_its_server_see_gpus_of_their_own(served: tuple[Cluster, str]) -> None:
    cluster, url = served
    cluster.kit("split", "--infer", "pc1:2", "--yes")
    cluster.kit("render")
    output = cluster.kit("deploy")
    assert f"serve-digits: started as 1 replica: {url}" in output
    assert "digits completed" in output

    def step() -> int:
        try:
            return int(get(f"{url}/model")["checkpoint"]["step"])
        except (OSError, TypeError, KeyError):
            return 0

    wait_for(
        lambda: told(cluster)["servers"][0]["hosts"][0]["seen"] == GPUS[2:], "the server's GPU"
    )
    status = told(cluster)
    (job,) = status["jobs"]
    assert [host["seen"] for host in job["hosts"]] == [GPUS[:2]]
    assert status["wrong_gpus"] == []
    (metrics,) = (cluster.state / "digits").rglob("metrics.jsonl")
    assert json.loads(metrics.read_text().splitlines()[0])["gpus"] == {"pc1": GPUS[:2]}
    last = job["progress"]["step"]
    wait_for(lambda: step() == last, "the result to be served")
    assert told(cluster)["servers"][0]["checkpoint"] == f"step-{last:08d}"
    assert f"answers at {url}" in cluster.kit("status")

    # The job again: the server is left alone.
    before = cluster.state / "serve-digits" / "run.json"
    run = before.read_text()
    assert "serve-digits: runs already, from the same file" in cluster.kit("deploy")
    assert before.read_text() == run

    # All back: the server is idle, and is not left behind.
    cluster.kit("split", "--infer", "0", "--yes")
    cluster.kit("render")
    cluster.job("digits", JOB.replace("EPOCHS", "4"))
    cluster.kit("render")
    output = cluster.kit("deploy")
    assert "serve-digits: is idle: it has no GPU" in output
    assert [host["seen"] for host in told(cluster)["jobs"][0]["hosts"]] == [GPUS]
    wait_for(lambda: cluster.processes() == [], "the end of the server")


def test_a_server_ends_by_its_name_alone(served: tuple[Cluster, str]) -> None:
    cluster, _ = served
    cluster.kit("split", "--infer", "1", "--yes")
    cluster.kit("render")
    cluster.kit("deploy", "serve-digits")
    wait_for(lambda: "serve" in cluster.kit("logs", "serve-digits"), "its first words")
    assert "serve-digits continues: `kit stop serve-digits` ends it" in cluster.kit("stop")
    assert "serve-digits stopped after" in cluster.kit("stop", "serve-digits")
    wait_for(lambda: not cluster.processes(), "an end of all processes")
    assert "nothing is running" in cluster.kit("stop", "--all")


def test_a_model_of_ones_own_is_trained_and_served(served: tuple[Cluster, str]) -> None:
    """The module and the job of the documentation, through kit's commands."""
    cluster, url = served
    page = (ROOT / "docs" / "how-to" / "own-model.md").read_text()
    (code,) = re.findall(r"```python\n# jobs/progression.py\n(.*?)```", page, re.DOTALL)
    (train,) = re.findall(r"```yaml\n# jobs/diabetes.yaml\n.*?(train:.*?)```", page, re.DOTALL)
    example = ROOT / "tests" / "examples" / "case2-own-model" / "jobs" / "progression.py"
    assert code == example.read_text()
    module = cluster.folder / "jobs" / "progression.py"
    module.write_text(code)
    cluster.job("digits", train)
    cluster.kit("split", "--infer", "pc1:1", "--yes")
    cluster.kit("render")
    assert "digits completed" in cluster.kit("deploy")
    (job,) = told(cluster)["jobs"]
    assert set(job["progress"]["metrics"]) == {"loss", "mae"}
    assert job["progress"]["metrics"]["mae"] < 60  # The deviation of the targets is 77.
    assert job["progress"]["accuracy"] is None
    assert re.search(r"digits: test loss 0\.\d+, mae \d+", cluster.kit("status"))

    def answers() -> Any:
        try:
            return post(f"{url}/predict", {"inputs": [[0.0] * 10, [1.0] * 10]})
        except OSError:
            return None

    wait_for(answers, "an answer")
    found = [each["answer"] for each in answers()["predictions"]]
    assert all(25 < each < 346 for each in found)
    assert found[0] != found[1]
    assert get(f"{url}/model")["input"] == {"shape": [10], "values": "float32"}
    assert "mae" in cluster.kit("report", "digits", "--json")

    module.write_text(code.replace("return functional.mse_loss(outputs, targets)", "return target"))
    cluster.job("digits", train.replace("epochs: 20", "epochs: 21"))
    cluster.kit("render")
    failed = cluster.kit("deploy", status=1)
    assert "progression.py:28: in loss: NameError: name 'target' is not defined" in failed
    assert "Traceback" not in failed
    (job,) = told(cluster)["jobs"]
    assert job["state"] == "failed"


def test_a_port_that_is_taken_is_told_before_a_server_starts(served: tuple[Cluster, str]) -> None:
    cluster, url = served
    (cluster.folder / "jobs" / "digits.yaml").unlink()
    port = int(url.rpartition(":")[2])
    server = cluster.folder / "serve" / "digits.yaml"
    server.write_text(f"image: none\ncommand: [python3, -m, http.server]\nport: {port}\n")
    cluster.kit("split", "--infer", "pc1:1", "--yes")
    cluster.kit("render")
    with socket.create_server(("", port)):
        output = cluster.kit("deploy", status=1)
    assert f"serve-digits cannot listen on port {port} of this machine: Address already" in output
    assert "started as" not in output
    assert not cluster.processes()


def test_a_server_of_ones_own_is_a_process_here(served: tuple[Cluster, str]) -> None:
    """Any program: its mounts are this machine's folders, its secrets are variables."""
    cluster, url = served
    (cluster.folder / "jobs" / "digits.yaml").unlink()
    pages = cluster.folder / "pages"
    pages.mkdir()
    server = cluster.folder / "serve" / "digits.yaml"
    script = "sleep 1; echo $KIT_GPUS $CUDA_VISIBLE_DEVICES $KEY >seen; exec python3 -m http.server"
    server.write_text(
        f"image: none\ncommand: [sh, -c, '{script} $KIT_PORT --bind 127.0.0.1']\n"
        f"port: {url.rpartition(':')[2]}\nhealth: /seen\nworking_dir: /pages\n"
        f"mounts: [{{bind: {pages}, to: /pages}}]\nsecrets: {{KEY: env}}\n"
    )
    cluster.kit("split", "--infer", "pc1:1", "--yes")
    cluster.kit("render")
    os.environ["KEY"] = "hush-7"
    try:
        output = cluster.kit("deploy")
    finally:
        del os.environ["KEY"]
    assert "serve-digits: healthy" in output
    with urllib.request.urlopen(f"{url}/seen", timeout=5) as answer:
        assert answer.read().split() == [b"1", GPUS[1].encode(), b"hush-7"]
    (told_of,) = told(cluster)["servers"]
    assert [host["healthy"] for host in told_of["hosts"]] == [True]

    (pages / "seen").unlink()
    assert "not healthy: it answers 404 at /seen" in cluster.kit("status")
    assert "GET /seen" in cluster.kit("logs", "serve-digits")
    assert "serve-digits stopped after" in cluster.kit("stop", "serve-digits")
    wait_for(lambda: not cluster.processes(), "an end of all processes")
