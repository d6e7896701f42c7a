"""The monitoring: rendered files, rules, dashboards; queries run on a real Prometheus."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.models import units

from docs.generate import dashboards
from kit.runtime.kept import SCRIPT, Span, parsed
from tests.conftest import Docker
from tests.disks import into_mounts, on_small_disk
from tests.pages import anchors
from tests.ports import free_port
from tests.sandbox import INVENTORY, JOB, ROOT, SERVER, Project
from tests.trainer import servers
from tests.trainer.hosts import ENDLESS, PACE, hosts, wait_until, write_job

MONITORED = INVENTORY + 'monitoring: {retention: 30d, alertmanager: "alerts.lab:9093", logs: 30d}\n'
RUNBOOKS = ROOT / "docs" / "how-to" / "monitoring.md"
BOARDS = [board.name for board in dashboards.BOARDS]


def program(name: str) -> str:
    """A program of Debian's packages prometheus and prometheus-node-exporter."""
    found = shutil.which(name)
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{name} is not installed")
    return found or pytest.skip(f"{name} is not installed")


def promtool(folder: Path, *arguments: str) -> str:
    command = [program("promtool"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("engine", ["swarm", "compose", "local"])
@pytest.mark.parametrize("network", ["overlay", "host"])
def test_prometheus_accepts_its_files(project: Project, engine: str, network: str) -> None:
    text = MONITORED.replace("engine: swarm", f"engine: {engine}")
    text = text.replace("{speed: 1Gbit}", f"{{speed: 1Gbit, driver: {network}}}")
    tree = project.write(text, servers={"digits": SERVER}).rendered()
    folder = tree / "monitoring"
    assert "SUCCESS" in promtool(folder, "check", "config", "prometheus.yml")
    found = yaml.safe_load((folder / "prometheus.yml").read_text())
    scrapes = {each["job_name"]: each for each in found["scrape_configs"]}
    assert "serve" in scrapes
    assert scrapes["train"]["honor_labels"] is True
    if (engine, network) == ("swarm", "overlay"):
        (discovery,) = scrapes["train"]["dns_sd_configs"]
        assert discovery["names"] == ["kit-metrics-9500"]
    else:
        named = [each["labels"]["host"] for each in scrapes["train"]["static_configs"]]
        assert named == ["pc1", "pc2"]
    exporters = {"node", "dcgm", "docker"} if engine != "local" else set()
    assert exporters == scrapes.keys() - {"train", "serve"}


def test_the_stack_is_what_docker_accepts(project: Project, docker: Docker) -> None:
    tree = project.write(MONITORED, servers={"digits": SERVER}).rendered()
    done = docker.run("stack", "config", "-c", "monitoring.stack.yaml", folder=tree)
    assert (done.returncode, done.stderr) == (0, "")
    stack = yaml.safe_load(done.stdout)
    services = stack["services"]
    everywhere = {"node-exporter", "dcgm-exporter", "log-collector"}
    assert services.keys() == {"prometheus", "grafana", *everywhere}
    assert "ports" not in services["prometheus"]
    environment = services["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    secret = environment["GF_SECURITY_ADMIN_PASSWORD__FILE"].rpartition("/")[2]
    assert stack["secrets"][secret] == {"name": f"lab-monitoring-{secret}", "external": True}
    assert all(len(each["name"]) <= 64 for each in stack["configs"].values())
    job = yaml.safe_load((tree / "train-digits.stack.yaml").read_text())["services"]
    working = [each for name, each in job.items() if name != "rendezvous"]
    assert [each["networks"] for each in working] == [
        {"training": {"aliases": ["kit-metrics-9500"]}}
    ] * 2
    assert json.loads((tree / "jobs/digits.json").read_text())["metrics"] == {"port": 9500}
    assert json.loads((tree / "hosts/pc1/daemon.json").read_text())["metrics-addr"]


def test_the_projects_are_what_docker_accepts(project: Project, docker: Docker) -> None:
    tree = project.write(MONITORED.replace("engine: swarm", "engine: compose")).rendered()
    for host, more in (("pc1", {"prometheus", "grafana"}), ("pc2", set[str]())):
        file = f"hosts/{host}/monitoring.compose.yaml"
        done = docker.run("compose", "-f", file, "config", "--format", "json", folder=tree)
        assert done.returncode == 0, done.stderr
        services = json.loads(done.stdout)["services"].keys()
        assert services == {"node-exporter", "dcgm-exporter", "log-collector", *more}


def test_jobs_of_a_host_have_ports_of_their_own(project: Project) -> None:
    half = JOB + "hosts: {names: [pc1]}\n"
    other = JOB + "hosts: {names: [pc2]}\n"
    text = MONITORED.replace("engine: swarm", "engine: local")
    project.write(text, {"a": half, "b": other})
    config = yaml.safe_load((project.rendered() / "monitoring/prometheus.yml").read_text())
    (train,) = (each for each in config["scrape_configs"] if each["job_name"] == "train")
    targets = [each["targets"][0] for each in train["static_configs"]]
    assert len(set(targets)) == 2


@pytest.mark.parametrize("engine", ["swarm", "compose"])
def test_lines_are_kept_where_the_inventory_says_for_how_long(
    project: Project, engine: str
) -> None:
    text = MONITORED.replace("engine: swarm", f"engine: {engine}")
    file = "monitoring/keep-logs.sh"
    shown = project.write(text).kit("plan").out
    assert "each host keeps the lines of containers for 30 days, at most 10GiB" in shown
    assert "-mmin +43200 " in (project.rendered() / file).read_text()
    tree = project.write(text.replace(", logs: 30d", "")).rendered()
    assert not (tree / file).exists()
    assert "syslog" not in "".join(each.read_text() for each in tree.rglob("*.yaml"))


@pytest.fixture
def keeper(project: Project) -> list[str]:
    """The program that deletes old lines, with room for 100 MiB."""
    text = MONITORED.replace("logs: 30d", "logs: {keep: 2d, size: 100MiB}")
    return ["sh", str(project.write(text).rendered() / "monitoring/keep-logs.sh")]


def missing_of(folder: Path, *prefix: str) -> list[str]:
    """What kit says of missing lines."""
    words = [*prefix, "sh", "-c", SCRIPT.replace("cd /logs", f"cd {folder}"), "sh", "", "*", ""]
    told = subprocess.run(words, capture_output=True, text=True, check=True)
    return list(parsed(told.stdout, "lab", ["own"], "pc1").missing(Span(0, math.inf)))


def test_the_oldest_days_are_deleted_first(keeper: list[str], tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    now = datetime.now(UTC)
    days = [f"{now - timedelta(days=ago):%Y-%m-%d}" for ago in (4, 1, 0)]
    for container, megabytes in {"a": (1, 60, 10), "b": (0, 0, 60)}.items():
        (logs / container).mkdir(parents=True)
        for day, size in zip(days, megabytes, strict=True):
            if size:
                with (logs / container / f"{day}.log").open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, size << 20)
    old, yesterday, today = (logs / "a" / f"{day}.log" for day in days)
    os.utime(old, (0, 0))
    asked, program = tmp_path / "asked", tmp_path / "bin" / "syslog-ng-ctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{asked}\n')
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    subprocess.run([*keeper, logs, "0"], check=True, env=env)
    assert (old.exists(), yesterday.exists(), today.stat().st_size) == (False, False, 10 << 20)
    [said] = missing_of(logs)
    assert re.fullmatch(r"pc1: lines from .+ are missing: there were more than .+ allows", said)

    # Large files of today are closed, and deleted before those of other containers.
    with (logs / "b" / today.name).open("wb") as collector:
        os.posix_fallocate(collector.fileno(), 0, 120 << 20)
    subprocess.run([*keeper, logs, "0"], check=True, env=env)
    assert set(asked.read_text().splitlines()) == {"reopen --control=/tmp/syslog-ng.ctl"}
    assert [each.relative_to(logs) for each in logs.rglob("*.log")] == [Path("a", today.name)]
    reasons = [line.split()[2] for line in (logs / ".gaps").read_text().splitlines()]
    assert reasons == ["size"] * 3


def test_a_full_disk_is_told(keeper: list[str], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    prefix = on_small_disk(disk, "4m", "head -c 3800k /dev/zero >junk")
    command = [*prefix, *keeper, str(disk), "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            assert "the disk is full" in started.stdout.readline()
            inside = into_mounts(started.pid)
            assert missing_of(disk, *inside) == ["pc1: its disk is full: newer lines are missing"]
            Path(f"/proc/{started.pid}/root{disk}/junk").unlink()
            assert "has room again" in started.stdout.readline()
            [said] = missing_of(disk, *inside)
        finally:
            started.kill()
    assert said.endswith(" may be missing: its disk was full")


# -------- Rules


@pytest.fixture
def rules(project: Project) -> Path:
    return project.write(MONITORED).rendered() / "monitoring"


def test_each_alert_fires_for_its_fault(rules: Path) -> None:
    shutil.copy(ROOT / "tests/monitoring/rules_test.yml", rules)
    assert "SUCCESS" in promtool(rules, "test", "rules", "rules_test.yml")
    tested = set(re.findall(r"alertname: (\w+)", (rules / "rules_test.yml").read_text()))
    assert tested == {each["alert"] for each in alerts(rules)}


def alerts(folder: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load((folder / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_each_alert_has_a_runbook(rules: Path) -> None:
    for alert in alerts(rules):
        path, _, anchor = alert["annotations"]["runbook"].partition("#")
        assert ROOT / path == RUNBOOKS
        assert anchor == alert["alert"].lower()
        assert anchor in anchors(RUNBOOKS)


# -------- Dashboards


@pytest.mark.parametrize("board", dashboards.BOARDS, ids=BOARDS)
def test_dashboards_are_what_the_sdk_writes(board: dashboards.Board) -> None:
    file = dashboards.FOLDER / f"{board.name}.json.j2"
    assert file.read_text() == dashboards.template(board), "run `make dashboards`"


@pytest.mark.parametrize("board", dashboards.BOARDS, ids=BOARDS)
def test_dashboards_are_dashboards(board: dashboards.Board, rules: Path) -> None:
    content = json.loads((rules / "dashboards" / f"{board.name}.json").read_text())
    assert (content["uid"], content["editable"]) == (f"kit-{board.name}", False)
    known = {value for name, value in vars(units).items() if name[0].isupper()} | {"none", "ops"}
    titles = [panel["title"] for panel in content["panels"]]
    assert len(set(titles)) == len(titles)
    for panel in content["panels"]:
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert unit in known
        for target in panel["targets"]:
            assert unit_of(target["expr"]) in {unit, None}, target["expr"]


def unit_of(query: str) -> str | None:
    """The unit of a simple query by the name of its metric; None if it is computed."""
    found = re.fullmatch(r"(?:(?:sum|max|min|avg) by \(.+?\) \()?([\w:]+)(?:\{[^}]*\})?\)?", query)
    if found is None:
        return None
    ends = {"_ratio": "percentunit", "_bytes": "bytes", "_seconds": "s", ":seconds": "s"}
    ends |= {"_celsius": "celsius", "_watts": "watt", "DEV_GPU_TEMP": "celsius"}
    if found[1] == "kit:rank_slowness:ratio":
        return "none"
    return next((unit for end, unit in ends.items() if found[1].endswith(end)), None)


# -------- A real Prometheus that has scraped a real training

DOCKER = "engine_daemon_container_states_containers"
"""Docker's engine answers only in the lab."""


class Exporter(BaseHTTPRequestHandler):
    """A stand-in for NVIDIA's exporter: the fields that kit asks it for, with its labels."""

    def do_GET(self) -> None:
        lines = []
        counters = (ROOT / "templates/monitoring/dcgm-counters.csv.j2").read_text()
        for name, kind in re.findall(r"^(DCGM_\w+), (\w+),", counters, re.MULTILINE):
            lines.append(f"# TYPE {name} {kind}")
            labels = 'gpu="0",UUID="GPU-a",device="nvidia0",modelName="A100",Hostname="1f2e"'
            lines.append(f"{name}{{{labels}}} {time.time() if kind == 'counter' else 7}")
        content = ("\n".join(lines) + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def process(*command: str, folder: Path) -> Iterator[None]:
    with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
        started = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield
    finally:
        started.terminate()
        started.wait(60)


def configuration(tree: Path, **targets: list[int]) -> None:
    """Let the rendered configuration scrape ports of this machine, each second."""
    file = tree / "monitoring" / "prometheus.yml"
    content = yaml.safe_load(file.read_text().replace("15s", "1s"))
    content["scrape_configs"] = [
        each for each in content["scrape_configs"] if each["job_name"] in targets
    ]
    for scrape in content["scrape_configs"]:
        labels = scrape["static_configs"][0]["labels"]
        ports = targets[scrape["job_name"]]
        scrape["static_configs"] = [
            {"targets": [f"127.0.0.1:{port}" for port in ports], "labels": labels}
        ]
    content.pop("alerting", None)
    file.write_text(yaml.safe_dump(content))


def query(port: int, text: str) -> list[dict[str, Any]]:
    arguments = urllib.parse.urlencode({"query": text})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{arguments}") as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def test_every_query_of_the_dashboards_returns_data(project: Project, tmp_path: Path) -> None:
    programs = program("prometheus"), program("prometheus-node-exporter")
    text = MONITORED.replace("engine: swarm", "engine: compose")
    tree = project.write(text, servers={"digits": SERVER}).rendered()
    own, node, *metrics = (free_port() for _ in range(4))
    sample = servers.inputs(1)
    exporter = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    Thread(target=exporter.serve_forever, daemon=True).start()
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\ncase $1 in -L) echo 'GPU 0: A100 (UUID: GPU-a)';; "
        "*) echo 'GPU-a, 50, 1024, 40960, 61, 250.50';; esac\n"
    )
    smi.chmod(0o755)
    more = {"NVIDIA_VISIBLE_DEVICES": "GPU-a", "KIT_DEVICE": "cpu", "KIT_OWNER": "anna"}
    more["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    job = write_job(tmp_path, **ENDLESS, every_epochs=20)
    options = ["--config.file=prometheus.yml", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    with hosts(tmp_path) as local:
        end = local.rendezvous()
        for name, port in zip(("pc1", "pc2"), metrics, strict=True):
            local.agent(name, job, end, 1, KIT_METRICS_PORT=str(port), **more, **PACE)
        wait_until(lambda: any((tmp_path / "pc1").glob("step-*/COMPLETE")), "a checkpoint")
        server = servers.start(local, tmp_path / "pc1")
        configuration(
            tree,
            train=metrics,
            node=[node],
            dcgm=[exporter.server_port],
            serve=[server.port],
        )
        with (
            process(
                *(programs[0], *options, f"--web.listen-address=127.0.0.1:{own}"),
                folder=tree / "monitoring",
            ),
            process(programs[1], f"--web.listen-address=127.0.0.1:{node}", folder=tmp_path),
        ):
            missing = wait_for_data(own, partial(server.predict, sample))
        exporter.shutdown()
        exporter.server_close()
    assert missing == []


def wait_for_data(port: int, ask: Callable[[], object]) -> list[str]:
    """Return the queries without data, after some seconds of scrapes."""
    todo = [
        re.sub(r"\$(job|host|server)\b", ".+", text)
        for board in dashboards.BOARDS
        for panel in board.panels
        for text, _ in panel.queries
        if DOCKER not in text
    ]
    todo += ["kit:rank_work:ratio_rate5m"]
    deadline = time.monotonic() + 120
    while todo and time.monotonic() < deadline:
        time.sleep(2)
        try:
            ask()
            todo = [text for text in todo if not has_data(query(port, text))]
        except OSError:  # Prometheus starts.
            continue
    return todo


def has_data(found: list[dict[str, Any]]) -> bool:
    return any(each["value"][1] != "NaN" for each in found)


@pytest.mark.parametrize("engine", ["swarm", "compose"])
@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            "monitoring: {port: 9100}",
            "monitoring.port: port 9100 of pc1 is already used by the node exporter; "
            "write `monitoring: {port: 9101}`",
        ),
        (
            'monitoring: {}\nregistry: {address: "192.168.8.151:9400", host: pc1}',
            "registry.address: port 9400 of pc1 is already used by the DCGM exporter; "
            "choose another port",
        ),
        (
            "monitoring: {port: 8090}\ndata: {image: trainer:1}",
            "data.port: port 8090 of pc1 is already used by Grafana; write `data: {port: 8091}`",
        ),
    ],
    ids=["exporter", "registry", "data"],
)
def test_services_of_the_platform_have_their_own_ports(
    project: Project, engine: str, section: str, said: str
) -> None:
    inventory = INVENTORY.replace("engine: swarm", f"engine: {engine}").replace(
        "roles: [manager]", "roles: [manager, storage]"
    )
    result = project.write(f"{inventory}{section}\n", {}).kit("plan")
    assert (result.status, said in result.err) == (2, True), result.err
