"""The monitoring on a real Swarm: Prometheus finds jobs by DNS, and every dashboard has data.

Prometheus, the node exporter and syslog-ng are Debian's own. A stand-in answers for NVIDIA's
exporter. Debian has no Grafana: a page of its dashboards stands for it.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from docs.generate import dashboards
from tests.conftest import Docker
from tests.lab import settings
from tests.lab.conftest import CLUSTER, Lab, wait_for
from tests.lab.images import root_file_system
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import BASE, IMAGE, REGISTRY
from tests.ports import free_port
from tests.sandbox import Project

pytestmark = pytest.mark.lab
NODES = ["n1", "n2", "n3"]
STAND_IN = f"{REGISTRY}/monitoring:lab"
JOB = f"""\
image: {IMAGE}
train: {{dataset: digits, model: cnn, epochs: 9999, batch_size: 32, learning_rate: 0.05}}
environment: {{OMP_NUM_THREADS: "1", LAB_PACE: "0.1"}}
"""
MONITORING = f"""\
monitoring:
  retention: 30d
  logs: 30d
  images:
    prometheus: {STAND_IN}-prometheus
    node_exporter: {STAND_IN}-node
    dcgm_exporter: {STAND_IN}-dcgm
    grafana: {STAND_IN}-grafana
    log_collector: {STAND_IN}-logs
"""
DCGM = """\
import re, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
fields = re.findall(r"^(DCGM_\\w+), (\\w+),", open(sys.argv[2]).read(), re.M)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        for name, kind in fields:
            value = time.time() if kind == "counter" else 7
            labels = 'gpu="0",UUID="GPU-a",Hostname="x"'
            self.wfile.write(f"# TYPE {name} {kind}\\n{name}{{{labels}}} {value}\\n".encode())
HTTPServer(("", 9400), Handler).serve_forever()
"""
ASK = """\
import json, sys, urllib.parse, urllib.request
for line in json.load(sys.stdin):
    url = "http://127.0.0.1:9090/api/v1/query?" + urllib.parse.urlencode({"query": line})
    found = json.load(urllib.request.urlopen(url, timeout=10))["data"]["result"]
    if not any(each["value"][1] != "NaN" for each in found):
        print(line)
"""


def context() -> bytes:
    """A folder for docker build: the programs, and one Dockerfile for each image."""
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("prometheus", "prometheus-node-exporter"):
            found = shutil.which(name)
            assert found is not None, f"{name} is not installed"
            tar.add(Path(found).resolve(), name)
        texts = {"dcgm.py": DCGM} | {
            f"Dockerfile.{name}": f"FROM {BASE}\n{rest}"
            for name, rest in {
                "prometheus": "COPY prometheus /usr/bin/\n"
                "RUN install -d -o 65534 -g 65534 /prometheus\n"
                'ENTRYPOINT ["/usr/bin/prometheus"]\n',
                "node": "COPY prometheus-node-exporter /usr/bin/\n"
                'ENTRYPOINT ["/usr/bin/prometheus-node-exporter"]\n',
                "grafana": 'ENTRYPOINT ["python3", "-m", "http.server", '
                '"-d", "/dashboards", "3000"]\n',
                "dcgm": 'COPY dcgm.py /\nENTRYPOINT ["python3", "/dcgm.py"]\n',
            }.items()
        }
        for name, text in texts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, BytesIO(text.encode()))
    return packed.getvalue()


def feed(lab: Lab, node: str, command: str, content: bytes) -> str:
    done = subprocess.run(
        ["ssh", "-F", str(lab.settings.ssh_config), "-o", "BatchMode=yes", node, command],
        input=content,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def push_collector(lab: Lab) -> None:
    collector = root_file_system(lab.settings, "logs", lab.settings.suite, ["syslog-ng-core"])
    image = f"{STAND_IN}-logs"
    feed(lab, "n1", f"docker import - {image} && docker push -q {image}", collector.read_bytes())


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    """An operator of a Swarm whose engines show their metrics."""
    made = make_operator(lab, project, docker, "swarm")
    tree = made.write({"digits": JOB}, ("engine: swarm\n", f"engine: swarm\n{MONITORING}"))
    before = {node: lab.ssh(node, "cat /etc/docker/daemon.json").stdout for node in NODES}
    for node in NODES:
        lab.ssh(node, "mount --make-rshared /")
        daemon = json.loads(before[node]) | {"metrics-addr": "0.0.0.0:9323"}
        rendered = json.loads((tree / "hosts" / node / "daemon.json").read_text())
        assert rendered["metrics-addr"] == daemon["metrics-addr"]
        feed(lab, node, "cat >/etc/docker/daemon.json", json.dumps(daemon).encode())
        lab.do("restart", node)
    feed(lab, "n1", "mkdir -p /tmp/monitoring && tar -x -C /tmp/monitoring", context())
    for name in ("prometheus", "node", "dcgm", "grafana"):
        image = f"{STAND_IN}-{name}"
        build = f"DOCKER_BUILDKIT=0 docker build -q -f Dockerfile.{name} -t {image} ."
        feed(lab, "n1", f"cd /tmp/monitoring && {build} && docker push -q {image}", b"")
    push_collector(lab)
    lab.do("swarm")  # A node that did not come back would have no collector.
    try:
        yield made
    finally:
        made.kit("stop")
        made.kit("swarm", "down", "--yes")
        for node in NODES:
            feed(lab, node, "cat >/etc/docker/daemon.json", before[node].encode())
            lab.do("restart", node)


def test_prometheus_finds_jobs_and_lines_outlive_containers(operator: Operator, lab: Lab) -> None:
    refused = operator.kit("swarm", "up", "--yes", status=2)
    assert "Grafana: secret GRAFANA_PASSWORD: the variable is not set here" in refused
    assert "hush" not in operator.kit("swarm", "up", "--yes", GRAFANA_PASSWORD="hush-hush")
    operator.kit("deploy", "digits", "--detach")
    # No server and no job of a queue runs here; tests/test_monitoring.py has them.
    queries = [
        re.sub(r"\$(job|host)\b", ".+", text)
        for board in dashboards.BOARDS
        if board.name != "serving"
        for panel in board.panels
        for text, _ in panel.queries
        if "kit_job_gpu_seconds" not in text
    ]
    missing = list(queries)

    def all_have_data() -> bool:
        nonlocal missing
        found = lab.docker("n1", "ps", "-q", "--filter", f"name={CLUSTER}-monitoring_prometheus")
        if found:
            ask = f"docker exec -i {found.split()[0]} python3 -c {shlex.quote(ASK)}"
            with contextlib.suppress(AssertionError):  # Prometheus may not listen yet.
                missing = feed(lab, "n1", ask, json.dumps(missing).encode()).splitlines()
        return not missing

    try:
        wait_for(all_have_data, "data of every query")
    finally:
        print(lab.docker("n1", "service", "ls"))
        print(lab.docker("n1", "stack", "ps", "--no-trunc", f"{CLUSTER}-monitoring"))
        print(missing)
    port = free_port()
    with operator.forwarded("grafana", f"{port}:") as said:
        assert f"http://127.0.0.1:{port}/ is grafana on n1" in said
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/job.json", timeout=60) as page:
            assert "panels" in json.load(page)
    stop_and_read(operator, lab)


def stop_and_read(operator: Operator, lab: Lab) -> None:
    """The lines of a stopped job are there, and the events among them say how it ended."""
    operator.kit("stop", "digits")
    for node in NODES[:2]:
        of_job = ("--filter", "name=train-digits")
        wait_for(lambda: not lab.docker(node, "ps", "-aq", *of_job), f"no container on {node}")  # noqa: B023
    last = [f"{node} | launch {node}: ended on SIGTERM" for node in NODES[:2]]

    def kept() -> bool:
        """Whether the collectors have the last lines, which they may read after the end."""
        lines = operator.kit("logs", "digits")
        return all(each in lines for each in last)

    wait_for(kept, "the last lines")
    for asked in ((), ("--run", "1"), ("--since", "yesterday")):
        lines = operator.kit("logs", "digits", *asked)
        for node in NODES[:2]:
            for words in (f"launch {node}: job digits from ", f"launch {node}: ended on SIGTERM"):
                assert f"{node} | {words}" in lines, (node, lines)
        assert "Docker keeps" not in lines
    [deployed] = json.loads(operator.kit("history", "--json"))
    outcome = deployed["outcome"]
    assert (outcome["state"], outcome["exit_status"]) == ("stopped", 143)
    assert outcome["step"] > 0
    assert "1 deployment in the history" in operator.kit("logs", "digits", "--run", "2", status=2)


@pytest.fixture
def collected(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    """An operator of Compose, whose hosts run the collector as the page says: by hand."""
    made = make_operator(lab, project, docker, "compose")
    job = JOB.replace(IMAGE, settings.STAND_IN)
    tree = made.write({"digits": job}, ("engine: compose\n", f"engine: compose\n{MONITORING}"))
    push_collector(lab)
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(tree, "tree")
    compose = "cd /tmp/tree/hosts/{0} && docker compose -f monitoring.compose.yaml"
    for node in NODES:
        feed(lab, node, "tar -x -C /tmp", packed.getvalue())
        lab.ssh(node, f"{compose.format(node)} up --detach --wait log-collector")
    try:
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            made.kit("stop")
        for node in NODES:
            lab.ssh(node, f"{compose.format(node)} down --volumes; rm -r /tmp/tree")


def test_lines_outlive_containers_under_compose(collected: Operator, lab: Lab) -> None:
    """Compose removes containers itself, and its names and its history are others than Swarm's."""
    collected.kit("deploy", "digits", "--detach")
    wait_for(collected.trains, "a checkpoint")
    stop_and_read(collected, lab)
