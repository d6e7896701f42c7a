"""Preparing hosts: the merge of daemon.json, the rendered scripts, the order of restarts."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit.model import Host
from kit.prepare.merge import merge, merge_texts
from kit.prepare.order import waves
from kit.prepare.report import Line, Restart, read_report
from tests.sandbox import INVENTORY, JOB, ROOT, Project, kit_process

WANTED = {
    "default-runtime": "nvidia",
    "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}},
    "node-generic-resources": ["kit_gpu=GPU-a", "kit_gpu=GPU-b"],
    "insecure-registries": ["pc1:5000"],
    "log-driver": "json-file",
    "log-opts": {"max-size": "10m"},
}


def test_an_empty_file_becomes_kits() -> None:
    assert merge({}, WANTED) == (WANTED, [], [], "restart")


def test_what_is_there_already_stays_as_it_is() -> None:
    assert merge(WANTED, WANTED).apply == "nothing"
    text = json.dumps(WANTED, indent="\t") + "\n"
    assert merge_texts(text, json.dumps(WANTED)) == (["apply nothing"], text)


OWN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("keys that kit does not know", {"data-root": "/srv"}, {"data-root": "/srv"}),
    (
        "a driver of the logs, whose options differ",
        {"log-driver": "journald"},
        {"log-driver": "journald", "log-opts": None},
    ),
    (
        "a runtime",
        {"runtimes": {"kata": {"path": "k"}}},
        {"runtimes": {"kata": {"path": "k"}, **WANTED["runtimes"]}},  # type: ignore[dict-item]
    ),
    (
        "what nvidia-ctk has written",
        {"runtimes": {"nvidia": {"args": [], "path": "/usr/bin/nvidia-container-runtime"}}},
        {"runtimes": {"nvidia": {"args": [], "path": "/usr/bin/nvidia-container-runtime"}}},
    ),
    (
        "the resources of NVIDIA's playbook, while GPUs of another card go",
        {"node-generic-resources": ["NVIDIA_GPU=GPU-a", "kit_gpu=GPU-old"]},
        {"node-generic-resources": ["NVIDIA_GPU=GPU-a", "kit_gpu=GPU-a", "kit_gpu=GPU-b"]},
    ),
    (
        "a registry",
        {"insecure-registries": ["old:5000"]},
        {"insecure-registries": ["old:5000", "pc1:5000"]},
    ),
]


@pytest.mark.parametrize(
    ("present", "expected"), [case[1:] for case in OWN], ids=[c[0] for c in OWN]
)
def test_an_operators_own_values_stay(present: dict[str, Any], expected: dict[str, Any]) -> None:
    result = merge(present, WANTED)
    assert (result.conflicts, result.apply) == ([], "restart")
    wanted = {**WANTED, **expected}
    assert result.config == {key: value for key, value in wanted.items() if value is not None}
    assert list(result.config)[: len(present)] == list(present)
    assert merge(result.config, WANTED).apply == "nothing"


def test_a_gpu_that_another_resource_offers_is_noted() -> None:
    """Recipes for Swarm cut UUIDs short."""
    uuid = "GPU-7af7a99b-2d3c-0d1c-6fc2-4d5b0e1a2c3d"
    recipe = ["NVIDIA-GPU=GPU-7af7a99b", "kit_gpu=GPU-7af7a99b", "gpu=GPU-d8f6a6f1"]
    wanted = {"node-generic-resources": [f"kit_gpu={uuid}"]}
    result = merge({"node-generic-resources": recipe}, wanted)
    assert result.config["node-generic-resources"] == [recipe[0], recipe[2], f"kit_gpu={uuid}"]
    assert result.notes == [
        "NVIDIA-GPU=GPU-7af7a99b stays: other services of the Swarm can take that GPU as well"
    ]


GPU_UUID = "GPU-7af7a99b-2d3c-0d1c-6fc2-4d5b0e1a2c3d"
LOST = "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error"
DRIVERS = [
    (f"GPU 0: A100 (UUID: {GPU_UUID})", GPU_UUID.upper(), ["ok GPUs that the driver lists: 1"]),
    (
        f"{LOST}\nGPU 0: A100 (UUID: {GPU_UUID})",
        GPU_UUID,
        [f"note nvidia-smi: {LOST}", "ok GPUs that the driver lists: 1"],
    ),
    (
        f"GPU 0: A100 (UUID: {GPU_UUID})",
        GPU_UUID[:12],
        [
            "problem GPU-7af7a99b of the inventory is not on this host: kit discover",
            "ok GPUs that the driver lists: 1",
        ],
    ),
    (LOST, GPU_UUID, [f"problem nvidia-smi fails: {LOST}"]),
]


@pytest.mark.parametrize(("listed", "offered", "said"), DRIVERS)
def test_the_driver_is_looked_at(listed: str, offered: str, said: list[str]) -> None:
    text = (ROOT / "templates" / "prepare-host.sh.j2").read_text()
    function = text[text.index("gpu_driver() {") : text.index("# The names of GPUs that")]
    own = "".join(f'{name}() {{ echo "{name} $1"; }}\n' for name in ("ok", "note", "problem"))
    own += f"has() {{ :; }}\noffered_gpus() {{ echo {offered}; }}\n"
    own += f"timeout() {{ printf '%s\\n' '{listed}'; }}\n"
    done = subprocess.run(
        ["sh", "-c", f"{own}{function}gpu_driver"], capture_output=True, text=True, check=True
    )
    assert (done.stdout.splitlines(), done.stderr) == (said, "")


CONFLICTS: list[tuple[object, str]] = [
    ({"default-runtime": "crun"}, '"default-runtime" is "crun"; kit needs "nvidia"'),
    (
        {"runtimes": {"nvidia": {"path": "/opt/own"}}},
        '"runtimes": "nvidia" is {"path": "/opt/own"}',
    ),
    ({"runtimes": []}, '"runtimes" is []; kit needs {"nvidia"'),
    ({"live-restore": True}, '"live-restore": true excludes a Swarm; set it to false'),
    ([], "this is no JSON object"),
]


@pytest.mark.parametrize(("present", "told"), CONFLICTS)
def test_conflicts_are_told_and_nothing_is_written(present: object, told: str) -> None:
    report, text = merge_texts(json.dumps(present), json.dumps(WANTED))
    assert text == ""
    assert [line.partition(told)[:2] for line in report] == [("conflict ", told)]


def test_text_that_is_no_json_is_a_conflict() -> None:
    report, text = merge_texts('{"a": 1,}', "{}")
    assert (len(report), text) == (1, "")
    assert report[0].startswith("conflict this is not JSON: ")


@pytest.mark.parametrize(
    ("missing", "apply"),
    [
        ("runtimes", "reload"),
        ("default-runtime", "reload"),
        ("insecure-registries", "reload"),
        ("node-generic-resources", "restart"),
    ],
)
def test_docker_is_restarted_only_for_what_it_reads_at_its_start(missing: str, apply: str) -> None:
    present = {key: value for key, value in WANTED.items() if key != missing}
    assert merge(present, WANTED).apply == apply


def host(name: str) -> Host:
    return Host(name, "", name, (), (), None, 0, ())


def test_hosts_restart_together_unless_a_job_needs_the_others() -> None:
    a, b, c, d = (host(name) for name in "abcd")
    assert waves([a, b, c], (), alone=False) == [(a, b, c)]
    assert waves([a, b, c, d], {"a", "c"}, alone=False) == [(b, d), (a,), (c,)]
    assert waves([a, b, c], {"a"}, alone=True) == [(b,), (c,), (a,)]
    assert waves([], {"a"}, alone=False) == []


def test_a_report_is_read_line_by_line() -> None:
    said = [
        "ok       Docker runs",
        "         +{",
        "change   restart Docker: containers=2 swarm=active",
    ]
    report = read_report(host("pc1"), 1, said)
    assert report.explained
    assert report.lines[:2] == (Line("ok", "Docker runs"), Line("", "         +{"))
    assert report.changes == ("restart Docker: containers=2 swarm=active",)
    assert report.restart == Restart(2, swarm=True)
    assert read_report(host("pc1"), 0, ["ok x"]).restart is None


@pytest.fixture
def tree(project: Project) -> Path:
    return project.write().rendered()


ENTER = """\
root() {
    case "$1 $2" in
        "docker info") head -n 1 states; [ "$(wc -l <states)" = 1 ] || sed -i 1d states ;;
        "systemctl restart") echo restart >>done ;;
    esac
}
say() { echo "$*"; }
problem() { echo "problem $1"; }
sleep() { :; }
"""


NO_SWARM = "problem Docker has restarted, and is not in its Swarm: "
ENTERS = [
    (["pending", "error", "pending", "active"], 1, ""),
    ([*40 * ["pending"], "error", "active"], 1, ""),  # Its try may last a minute.
    (["pending"], 0, f"{NO_SWARM}pending"),
    (["error"], 3, f"{NO_SWARM}error"),
]


@pytest.mark.parametrize(("states", "restarts", "said"), ENTERS)
def test_an_engine_that_does_not_enter_its_swarm_is_restarted_again(
    tree: Path, tmp_path: Path, states: list[str], restarts: int, said: str
) -> None:
    script = (tree / "prepare-host.sh").read_text()
    functions = (
        re.findall(rf"^{name}\(\) {{\n.*?^}}\n", script, re.MULTILINE | re.DOTALL)
        for name in ("answers", "enter_swarm")
    )
    (tmp_path / "states").write_text("".join(f"{state}\n" for state in states))
    program = ENTER + "".join(text for found in functions for text in found) + "enter_swarm\n"
    run = ["sh", "-euc", program]
    output = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert output.splitlines()[restarts:] == ([f"{said} {states[-1]}"] if said else [])
    log = tmp_path / "done"
    assert (log.read_text().count("restart") if log.exists() else 0) == restarts


def test_the_scripts_are_valid_for_every_posix_shell(tree: Path) -> None:
    for path in (tree / "prepare-host.sh", tree / "hosts/pc1/prepare.sh"):
        subprocess.run(["sh", "-n", str(path)], check=True)
    if shutil.which("shellcheck"):
        scripts = ("prepare-host.sh", "hosts/pc1/prepare.sh")
        subprocess.run(["shellcheck", "-x", "-e", "SC1091", *scripts], cwd=tree, check=True)


def test_the_script_of_a_host_says_what_the_host_is(project: Project) -> None:
    def settings(inventory: str, host: str) -> dict[str, str]:
        text = (project.write(inventory).rendered() / f"hosts/{host}/prepare.sh").read_text()
        lines = (line.partition("=") for line in text.splitlines() if "=" in line[:12])
        return {name: value.strip("'") for name, _, value in lines if not name.startswith("#")}

    own = settings(INVENTORY, "pc1")
    own.pop("tree")
    assert own == {
        "host": "pc1",
        "address": "192.168.8.151",
        "engine": "swarm",
        "gpus": "yes",
        "manager": "yes",
        "infiniband": "no",
        "services": "",
        "any_port": "no",
    }
    assert settings(INVENTORY, "pc2")["manager"] == "no"
    assert settings(INVENTORY.replace("swarm", "compose"), "pc1")["engine"] == "compose"
    infiniband = INVENTORY.replace("{speed: 1Gbit}", "{driver: host, infiniband: true}")
    assert settings(infiniband, "pc1")["infiniband"] == "yes"
    daemon = json.loads((project.folder / "compose/lab/hosts/pc1/daemon.json").read_text())
    assert daemon["default-ulimits"]["memlock"] == {"Name": "memlock", "Soft": -1, "Hard": -1}


SERVICES = """\
data: {image: "trainer:1"}
monitoring: {}
registry: {address: "pc1:5000", host: pc1}
"""


def services_of(tree: Path, host: str) -> dict[int, str]:
    """Return the ports that the script of a host opens, and the services that need them."""
    text = (tree / f"hosts/{host}/prepare.sh").read_text().partition("services='\n")[2]
    rows = (line.partition(" ") for line in text.partition("'")[0].splitlines())
    return {int(port): service for port, _, service in rows}


def published(tree: Path) -> dict[str, set[int]]:
    """Return the ports that the rendered Compose files publish on each host."""
    found: dict[str, set[int]] = {}
    for file in tree.glob("hosts/*/*.compose.yaml"):
        for service in yaml.safe_load(file.read_text())["services"].values():
            for port in service.get("ports", ()):
                number = port["published"] if isinstance(port, dict) else port.split(":")[-2]
                found.setdefault(file.parent.name, set()).add(int(number))
    return found


def test_the_firewall_opens_what_the_files_publish(project: Project) -> None:
    inventory = INVENTORY.replace("swarm", "compose").replace("[manager]", "[manager, storage]")
    tree = project.write(inventory + SERVICES, {"digits": JOB}).rendered()
    on_hosts_network = {9100, 9323, 9400}
    for host, ports in published(tree).items():
        opened = set(services_of(tree, host))
        assert opened >= ports | on_hosts_network
        # The job of two hosts is on their own network, the rendezvous on one of them.
        rest = opened - ports - on_hosts_network
        job = {port for port in rest if services_of(tree, host)[port] == "job digits"}
        assert (rest, len(job)) == (job, 2 if host == "pc1" else 1)
    assert set(published(tree)["pc2"]) == {6881, 6882}
    assert "any_port=yes" in (tree / "hosts/pc2/prepare.sh").read_text()


def test_an_overlay_needs_only_the_published_ports(project: Project) -> None:
    inventory = INVENTORY.replace("[manager]", "[manager, storage]")
    tree = project.write(inventory + SERVICES, {"digits": JOB}).rendered()
    exporters = {
        9100: "the node exporter",
        9323: "the metrics of Docker",
        9400: "the DCGM exporter",
    }
    assert services_of(tree, "pc2") == exporters
    own = {3000: "Grafana", 5000: "the registry", 8090: "the data services"}
    assert services_of(tree, "pc1") == exporters | own
    alone = INVENTORY.replace("[manager]", "[manager, storage]") + 'data: {image: "trainer:1"}\n'
    hosts_network = alone.replace("{speed: 1Gbit}", "{speed: 1Gbit, driver: host}")
    tree = project.write(hosts_network).rendered()
    assert {6881, 6882} == {
        port for port, name in services_of(tree, "pc2").items() if "data" in name
    }


def test_the_steps_are_the_same_for_all_hosts(project: Project) -> None:
    first = project.write().rendered()
    names = ("prepare-host.sh", "prepare-daemon.py")
    texts = [(first / name).read_text() for name in names]
    project.write(INVENTORY.replace("pc2", "other").replace("GPU-b", "GPU-z")).rendered()
    assert [(first / name).read_text() for name in names] == texts


def test_the_program_in_the_tree_merges(tree: Path, tmp_path: Path) -> None:
    present, merged = tmp_path / "present", tmp_path / "merged"
    present.write_text('{\n    "labels": ["rack=7"]\n}\n')
    wanted = tree / "hosts/pc1/daemon.json"
    command = [sys.executable, "-I", str(tree / "prepare-daemon.py")]
    done = subprocess.run(
        [*command, str(present), str(wanted), str(merged)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "apply restart\n"
    expected = {"labels": ["rack=7"], **json.loads(wanted.read_text())}
    assert merged.read_text() == json.dumps(expected, indent=4) + "\n"


CARD = """\
set -e
ip link add card type veth peer name other
ip link set card up
ip link set other up
ip addr add 10.0.0.5/24 dev card
ip addr add 10.0.0.6/24 dev card
ip addr add 192.168.8.5/24 dev card
ip addr add 10.255.0.2/32 dev lo
[ ! -e /proc/net/if_inet6 ] || ip addr add fd00::5/64 dev card nodad
ip route add 10.0.0.0/8 via 10.0.0.1
ip route add default via 10.0.0.1
"""
NETWORKS = {
    "10.0.0.5": "card 10.0.0.0/24 ip saddr",
    "10.0.0.6": "card 10.0.0.0/24 ip saddr",
    "192.168.8.5": "card 192.168.8.0/24 ip saddr",
    "10.255.0.2": "lo  ip saddr",
    "10.9.9.9": "  ip saddr",
    **({"fd00::5": "card fd00::/64 ip6 saddr"} if Path("/proc/net/if_inet6").exists() else {}),
}


@pytest.mark.skipif(not shutil.which("ip"), reason="iproute2 is not here")
def test_the_firewall_finds_the_network_of_any_address_of_a_card(tree: Path) -> None:
    text = (tree / "prepare-host.sh").read_text()
    function = re.search(r"^find_network\(\) \{\n.*?^\}\n", text, re.MULTILINE | re.DOTALL)
    assert function
    asked = "".join(
        f'address={address}; find_network; echo "$interface $network $saddr"\n'
        for address in NETWORKS
    )
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    words = ["unshare", *root, "--net", "sh", "-c", f"{CARD}{function[0]}{asked}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(NETWORKS.values())


ENGINES = {
    "podman-docker": (
        'echo "Emulate Docker CLI using podman." >&2\n'
        '[ "$1" = --version ] && echo "podman version 4.9.3" && exit\n'
        'echo "Error: unknown flag: --format" >&2; exit 125\n',
        "docker is Podman, which is no Docker Engine: apt remove podman-docker",
    ),
    "nerdctl": ("echo nerdctl version 1.7.6\n", "docker is nerdctl"),
    "Docker Desktop that is off": (
        '[ "$1" = context ] && echo unix:///home/me/.docker/desktop/docker.sock && exit\n'
        '[ "$1" = --version ] && echo "Docker version 27.2.0, build 3ab4256" && exit\nexit 1\n',
        "'s docker is Docker Desktop, a virtual machine without this host's GPUs",
    ),
    "rootless Docker": (
        '[ "$1" = context ] && echo unix:///run/user/1000/docker.sock && exit\n'
        '[ "$1" = info ] && echo "Ubuntu 24.04.1 LTS [name=cgroupns name=rootless]"\n',
        "'s docker is a rootless engine",
    ),
    "a context of another machine": (
        '[ "$1" = context ] && echo ssh://me@gpu2 && exit\nexit 1\n',
        "'s docker uses the engine at ssh://me@gpu2: docker context use default",
    ),
    "an engine that is off": (
        '[ "$1" = context ] && echo unix:///var/run/docker.sock && exit\nexit 1\n',
        "",
    ),
}


@pytest.mark.skipif(not Path("/etc/debian_version").exists(), reason="of Debian and Ubuntu")
@pytest.mark.parametrize(("docker", "told"), ENGINES.values(), ids=ENGINES)
def test_another_engine_is_named_before_anything_is_changed(
    tree: Path, tmp_path: Path, docker: str, told: str
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"docker": docker, "dockerd": "", "systemctl": ""}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}")
        (programs / name).chmod(0o755)
    done = subprocess.run(
        ["sh", str(tree / "hosts/pc1/prepare.sh"), "--check"],
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "SUDO_USER": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if "docker" in line]
    assert any(line.startswith("problem ") and told in line for line in found) is bool(told)


def test_help_and_unknown_options(tree: Path) -> None:
    script = str(tree / "hosts/pc2/prepare.sh")
    told = subprocess.run(["sh", script, "--help"], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("usage: sh hosts/pc2/prepare.sh [--check]")
    wrong = subprocess.run(["sh", script, "--chek"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("usage: ")


REFUSED = [
    (("--run", "--check"), "kit: --run changes the hosts, --check and --json do not\n"),
    (("pc3",), "kit: there is no host pc3\ndid you mean pc"),
    (("--toolkit", "/nonexistent"), "kit: --toolkit: /nonexistent has no .deb or .rpm files\n"),
]


@pytest.mark.parametrize(("arguments", "told"), REFUSED)
def test_mistakes_are_told_before_a_host_is_asked(
    project: Project, arguments: tuple[str, ...], told: str
) -> None:
    result = project.write().kit("host", "prepare", *arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(told)


def test_this_machine_needs_no_preparation(project: Project) -> None:
    result = project.write(INVENTORY.replace("swarm", "local")).kit("host", "prepare")
    assert result.status == 2
    assert "says `engine: local`: this machine needs no preparation" in result.err


def test_hosts_that_do_not_answer_are_told_and_the_files_are_written(project: Project) -> None:
    inventory = INVENTORY.replace("192.168.8.151", "pc1.invalid").replace(
        "192.168.8.114", "pc2.invalid"
    )
    project.write(inventory)
    result = kit_process(project.folder, "host", "prepare", "pc1")
    assert result.status == 1
    assert result.err.startswith("kit: pc1: cannot be reached: ")
    assert (project.folder / "compose/lab/hosts/pc2/prepare.sh").exists()
    assert project.kit("render", "--check").status == 0


@pytest.mark.parametrize(
    ("status", "said", "explained"),
    [
        (0, [], True),
        (1, [], False),
        (1, ["ok       x"], False),
        (1, ["failed   x"], True),
        (2, ["usage: …"], False),
        (2, ["problem  x"], True),
        (3, ["waits    restart Docker: containers=1 swarm=active"], True),
        (127, ["sh: tar: not found"], False),
    ],
)
def test_a_status_without_a_reason_is_not_taken_for_one(
    status: int, said: list[str], explained: bool
) -> None:
    assert read_report(host("pc1"), status, said).explained is explained
