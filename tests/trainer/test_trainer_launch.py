"""The launcher: its decisions, and its messages when it cannot continue."""

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.workload.variables import FAULT_VARIABLES
from tests.ports import free_port
from tests.trainer.hosts import DEADLINE, LAUNCH, hosts, write_job, write_programs
from trainer.contract.exits import NOT_OVER
from trainer.core.job import torch_fault
from trainer.group.messages import REPORT_EVERY, Group, Member, Report, encode
from trainer.group.server import FAREWELL, Server
from trainer.launcher import container, network, rounds, start
from trainer.launcher.container import available_cores
from trainer.launcher.disk import unchangeable
from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.failures import Trace, worker_failure
from trainer.launcher.main import main
from trainer.launcher.network import (
    find_rendezvous,
    hold_port,
    own_address,
    pick_interface,
    wait_for_rendezvous,
)
from trainer.launcher.settings import Settings, endpoint_text, parse_endpoint, read_job, read_nnodes
from trainer.launcher.start import installed_torch, prepare, rename_variables, torchrun_environ
from trainer.launcher.torchrun import torchrun_argv
from trainer.launcher.worker import place_worker

ENVIRON = {
    "KIT_JOB": "/job.json",
    "KIT_RENDEZVOUS": "rendezvous:29400",
    "KIT_NNODES": "1:2",
    "KIT_NPROC": "2",
}


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """An environment with which launching would go on, up to the wait for the coordinator."""
    for name in list(os.environ):
        if name.startswith(("KIT_", "NCCL_", "GLOO_", "NVIDIA_")):
            monkeypatch.delenv(name)
    environ = {
        **ENVIRON,
        "KIT_JOB": str(write_job(tmp_path)),
        "KIT_HOST": "pc1",
        "KIT_RENDEZVOUS": f"127.0.0.1:{free_port()}",
        "KIT_RENDEZVOUS_TIMEOUT": "1",
        "KIT_CHECKPOINTS": str(tmp_path),
        "KIT_DATA": str(tmp_path),
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    # It would last, and sudo would fail in a lab that this worker starts later.
    monkeypatch.setattr(start, "stay_unprivileged", lambda: None)
    return environ


def test_settings_have_the_documented_defaults() -> None:
    settings = Settings(ENVIRON)
    assert settings.rendezvous == ("rendezvous", 29400)
    assert settings.host == socket.gethostname()
    assert (settings.checkpoints, settings.data) == (Path("/checkpoints"), Path("/data"))
    assert (settings.nproc, settings.wait) == (2, 300)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("KIT_JOB", "", "KIT_JOB is not set"),
        ("KIT_RENDEZVOUS", "", "KIT_RENDEZVOUS is not set"),
        ("KIT_RENDEZVOUS", "pc1", 'must be host:port such as rendezvous:29400, is "pc1"'),
        ("KIT_RENDEZVOUS", "pc1:70000", "must be host:port"),
        ("KIT_NPROC", "0", 'KIT_NPROC must be a whole number of at least 1, is "0"'),
        ("KIT_NPROC", "all", "KIT_NPROC must be a whole number"),
        ("KIT_RENDEZVOUS_TIMEOUT", "soon", "KIT_RENDEZVOUS_TIMEOUT must be a whole number"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message) as caught:
        _ = Settings({**ENVIRON, name: value}).rendezvous
    assert caught.value.code == 2


@pytest.mark.parametrize("value", ["", "2", "3:2", "0:2", "1:2:3", "a:b"])
def test_a_wrong_number_of_hosts_is_refused(value: str) -> None:
    said = f'must be MIN:MAX such as 1:2, is "{value}"' if value else "KIT_NNODES is not set"
    with pytest.raises(LaunchError, match=said) as caught:
        read_nnodes({"KIT_NNODES": value})
    assert caught.value.code == 2


def test_torchrun_is_told_everything() -> None:
    members = (Member("a", "n1", "10.0.0.7:3000", 2, 4000), Member("b", "n2", "10.0.0.8:1", 2))
    around = Group(7, members)
    assert " ".join(torchrun_argv(2, around, 1, "own")) == (
        "--nnodes 2 --node-rank 1 --nproc-per-node 2 --rdzv-backend static "
        "--rdzv-endpoint 10.0.0.7:3000 --rdzv-id own-7 --max-restarts 0 --monitor-interval 0.1"
    )


def test_a_script_sees_its_job_and_a_port_of_its_own() -> None:
    environ = {"KIT_MASTER_PORT": "4000", "KIT_RESTARTS": "2", "MASTER_PORT": "3000"}
    place_worker(environ)
    assert environ["MASTER_PORT"] == "4000"
    assert environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    assert environ["TORCHELASTIC_RESTART_COUNT"] == "2"


def test_torchrun_environment_fills_in_what_is_not_set() -> None:
    result = torchrun_environ({"HOME": "/root"}, 3, "eth1", Path("/opt/kit"), cores=8)
    assert result == {
        "HOME": "/root",
        "NCCL_SOCKET_IFNAME": "=eth1",
        "GLOO_SOCKET_IFNAME": "eth1",
        "OMP_NUM_THREADS": "2",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONPATH": "/opt/kit",
    }


def test_torchrun_environment_keeps_what_the_user_set() -> None:
    mine = {"NCCL_SOCKET_IFNAME": "ib0", "OMP_NUM_THREADS": "4", "PYTHONPATH": "/mine"}
    result = torchrun_environ(mine, 16, "eth1", Path("/opt/kit"), cores=8)
    assert result["NCCL_SOCKET_IFNAME"] == "ib0"
    assert result["GLOO_SOCKET_IFNAME"] == "eth1"
    assert result["OMP_NUM_THREADS"] == "4"
    assert result["PYTHONPATH"] == "/opt/kit:/mine"
    alone = torchrun_environ({}, 16, "eth1", None, cores=8)
    assert "PYTHONPATH" not in alone
    assert alone["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("written", "exception"),
    [
        ("hello\n", ""),
        (
            "Traceback (most recent call last):\n"
            '  File "/w/a.py", line 3, in <module>\n    f()\n'
            '  File "/w/b.py", line 7, in f\n    raise KeyError("x")\n'
            "KeyError: 'x'\nlast words\n",
            "KeyError: 'x' (/w/b.py:7)",
        ),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 1\n\n'
            "During handling of the above exception, another exception occurred:\n\n"
            'Traceback (most recent call last):\n  File "a.py", line 2, in g\nValueError\n',
            "ValueError (a.py:2)",
        ),
        (
            '  File "/w/a.py", line 2\n    def f(:\n          ^\nSyntaxError: invalid syntax\n',
            "SyntaxError: invalid syntax (/w/a.py:2)",
        ),
    ],
)
def test_the_exception_of_the_last_traceback_is_found(written: str, exception: str) -> None:
    trace = Trace()
    for line in written.splitlines():
        trace.read(line)
    assert trace.exception == exception


def test_a_held_port_is_for_the_server_that_asks_for_it() -> None:
    with hold_port("127.0.0.1") as held:
        at = held.getsockname()
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind(at)
        for address in (at, ("0.0.0.0", at[1])):
            with socket.create_server(address), socket.create_connection(at):
                pass


def test_the_interface_is_the_one_that_has_the_address() -> None:
    addresses = {"127.0.0.1": "lo", "172.18.0.3": "eth0", "10.0.1.5": "eth1", "fd00::5": "eth2"}
    assert pick_interface("fd00::5", addresses, {}) == "eth2"
    assert pick_interface("10.0.1.5", addresses, {}) == "eth1"
    assert pick_interface("10.0.1.5", addresses, {"GLOO_SOCKET_IFNAME": "ib0"}) == "ib0"
    with pytest.raises(LaunchError, match=r"no interface has the address 10\.9\.9\.9"):
        pick_interface("10.9.9.9", addresses, {})


@pytest.mark.parametrize(
    ("chosen", "interface"),
    [
        ("eth1", "eth1"),  # Of those that begin so, the one on the way to the coordinator.
        ("=eth10", "eth10"),
        ("eth", "eth1"),
        ("^docker,lo", "eth1"),
        ("^=eth1,lo", "docker0"),
        ("=eth10,eth1", "eth1"),
        ("ib0", "ib0"),  # Without an IPv4 address.
        ("=ib0:1", "ib0"),
    ],
)
def test_gloo_gets_a_whole_name_of_what_nccl_was_told(chosen: str, interface: str) -> None:
    addresses = {"127.0.0.1": "lo", "172.17.0.1": "docker0", "10.0.9.5": "eth10"}
    addresses["10.0.1.5"] = "eth1"
    environ = {"NCCL_SOCKET_IFNAME": chosen}
    assert pick_interface("10.0.1.5", addresses, environ) == interface
    full = torchrun_environ(environ, 1, interface, None, cores=1)
    assert (full["NCCL_SOCKET_IFNAME"], full["GLOO_SOCKET_IFNAME"]) == (chosen, interface)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 4),
        ({"cpu.max": "max 100000\n"}, 4),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "800000 100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ],
)
def test_threads_follow_the_cpus_that_the_container_may_use(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(container, "CGROUP", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert available_cores() == cores


CARD = """\
set -e
ip link set lo up
ip addr add 10.255.0.2/32 dev lo
ip link add card type veth peer name other
ip link set card up
ip link set other up
ip addr add 10.0.0.5/24 dev card
ip addr add 10.0.0.6/24 dev card
ip addr add 192.168.8.5/24 dev card
ip addr add 192.168.9.5/24 dev card label card:1
[ ! -e /proc/net/if_inet6 ] || ip addr add fd00::5/64 dev card nodad
exec "$@"
"""
OWN = [
    ("127.0.0.1", "lo"),
    ("10.255.0.2", "lo"),  # As of hosts that announce their address by BGP.
    ("10.0.0.5", "card"),
    ("192.168.8.5", "card"),
    ("192.168.9.5", "card:1"),  # The label is the name that gloo looks for.
    ("10.0.0.6", "card"),  # Secondary: a second one in the same network.
    *([("fd00::5", "card")] if Path("/proc/net/if_inet6").exists() else []),
]


@pytest.mark.skipif(not shutil.which("ip"), reason="iproute2 is not here")
def test_all_addresses_of_a_card_are_found_not_only_its_first() -> None:
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    code = (
        "import json, sys, trainer.launcher.interfaces as n, trainer.bench.links as p\n"
        "print(json.dumps([n.interface_addresses(), [p.interface_of(a) for a in sys.argv[1:]]]))"
    )
    addresses = [address for address, _ in OWN]
    done = subprocess.run(
        ["unshare", *root, "--net", "sh", "-c", CARD, "sh", sys.executable, "-c", code, *addresses],
        cwd=LAUNCH.parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    found, of_bench = json.loads(done.stdout)
    assert [found.get(address) for address in addresses] == [name for _, name in OWN]
    assert of_bench == [name for _, name in OWN]
    # In the order in which NCCL and gloo look for the first one.
    assert [each for each in found if each in addresses] == addresses


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [("n1:29400", ("n1", 29400)), ("[fd00::1]:29400", ("fd00::1", 29400))],
)
def test_an_endpoint_is_read_as_it_is_written(text: str, endpoint: tuple[str, int]) -> None:
    assert parse_endpoint(text) == endpoint
    assert endpoint_text(endpoint) == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must be an object"),
        ('{"train": {}}', "name: must be the name of the job"),
        ('{"name": "x"}', "must have exactly one of train, command and session"),
        (
            '{"name": "x", "train": {}, "command": ["a"]}',
            "exactly one of train, command and session",
        ),
        ('{"name": "x", "command": "ddp.py 50"}', "command: must be a list of words"),
        ('{"name": "x", "command": ["ddp.py", 50]}', "command: must be a list of words"),
        ('{"name": "x", "command": []}', "command: must be a list of words"),
    ],
)
def test_a_wrong_job_file_is_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(content)
    with pytest.raises(LaunchError, match=message) as caught:
        read_job(path)
    assert str(path) in str(caught.value)
    assert caught.value.code == 2


def fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """Launch in this process; return its one line of error."""
    assert main(list(arguments)) == code
    error = capsys.readouterr().err
    assert error.startswith("launch pc1: error: ")
    assert error.count("\n") == 1
    return error


def test_a_missing_job_file(
    clean: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KIT_JOB", "/nowhere/job.json")
    error = fails(capsys, 2)
    assert "/nowhere/job.json: No such file or directory; KIT_JOB must name the job file" in error


def test_a_wrong_key_of_the_training(
    clean: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path, epochs=0)
    error = fails(capsys, 2)
    assert "digits.json: train.epochs: 0 is out of range; write a number of at least 1" in error


def test_missing_data(
    clean: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path, dataset="mnist")
    error = fails(capsys, 2)
    assert "mnist is not complete in any of" in error
    assert "missing train-images-idx3-ubyte" in error
    assert f"{tmp_path}/MNIST/raw" in error


def test_no_folder_for_checkpoints(
    clean: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KIT_CHECKPOINTS", "/nowhere/checkpoints")
    assert "/nowhere/checkpoints is not a folder that can be written to" in fails(capsys, 2)


def install_torch(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a version of torch be the one that is installed."""
    about = folder / "packages" / f"torch-{version}.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    monkeypatch.syspath_prepend(folder / "packages")


def test_the_training_needs_torch_2_6_and_a_script_does_not(
    clean: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install_torch(tmp_path, "2.5.1", monkeypatch)
    error = fails(capsys, 2)
    assert "torch 2.5.1 is too old" in error
    assert "use an image with torch 2.6 or newer" in error
    script = {"name": "x", "command": [str(LAUNCH)]}
    Path(clean["KIT_JOB"]).write_text(json.dumps(script))
    assert main([]) == 1
    assert "nothing answered at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("2.2.2+cu121", True),
        ("2.5.1", True),
        ("1.13.1", True),
        ("2.6.0a0+ecf3bae40a.nv25.01", False),
        ("2.6.0", False),
        ("2.13.0+cpu", False),
        ("3.0", False),
        ("", False),
    ],
)
def test_versions_of_torch_that_may_read_a_checkpoint(version: str, old: bool) -> None:
    assert bool(torch_fault(version)) is old


def test_a_script_that_is_not_there(
    clean: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(clean["KIT_JOB"]).write_text(json.dumps({"name": "x", "command": ["torchrun", "ddp.py"]}))
    error = fails(capsys, 2)
    assert f"command: torchrun is not a file in {tmp_path}" in error


@pytest.mark.parametrize(
    "command", [["bin/torchrun", "train.py"], ["-m", "torch.distributed.run", "train.py"]]
)
def test_a_launcher_of_its_own_is_no_script(
    command: list[str], clean: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each rank would start another group of one process."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchrun").write_text("#!/usr/bin/python3\n")
    Path(clean["KIT_JOB"]).write_text(json.dumps({"name": "x", "command": command}))
    assert "command: begins with " in fails(capsys, 2)


def test_the_training_needs_its_package(clean: dict[str, str], tmp_path: Path) -> None:
    line = [sys.executable, str(write_programs(tmp_path))]
    result = subprocess.run(
        line, env=clean, capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert result.returncode == 2
    assert "needs the trainer package beside launch.py" in result.stderr


def test_no_rendezvous_in_time(clean: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    error = fails(capsys, 1)
    endpoint = clean["KIT_RENDEZVOUS"]
    assert f"nothing answered at {endpoint} for 1 s (Connection refused)" in error


def answers(*addresses: str) -> Callable[..., list[Any]]:
    def getaddrinfo(host: str, port: int, *_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    return getaddrinfo


def test_several_addresses_are_refused(
    clean: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answers("10.0.0.2", "10.0.0.1", "10.0.0.2"))
    assert "127.0.0.1 has 2 addresses (10.0.0.1, 10.0.0.2)" in fails(capsys, 2)


def test_a_name_that_resolves_late_is_waited_for(
    clean: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = []

    def getaddrinfo(*arguments: Any) -> list[Any]:
        tries.append(arguments)
        if len(tries) < 2:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return answers("127.0.0.1")(*arguments)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = Settings({**clean, "KIT_RENDEZVOUS": f"rendezvous:{port}"})
        assert wait_for_rendezvous(settings) == "127.0.0.1"
    said = capsys.readouterr().out
    assert said == (
        f"launch pc1: waits 1 s for the coordinator at rendezvous:{port} "
        "(Name or service not known)\n"
    )


def test_an_unknown_subcommand(clean: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown: serve; give nothing, coordinator, rendezvous or health" in fails(
        capsys, 2, "serve"
    )


def nvidia_smi(folder: Path, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize("devices", ["", "void", "none", None])
def test_health_without_gpus(
    devices: str | None, clean: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    if devices is not None:
        monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", devices)
    assert main(["health"]) == 0


def test_health_counts_the_gpus(
    clean: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "nvidia-smi does not run" in fails(capsys, 1, "health")
    nvidia_smi(tmp_path, "echo 'GPU 0: TITAN RTX (UUID: GPU-a)'; echo 'GPU 1: GV100 (UUID: GPU-b)'")
    assert main(["health"]) == 0
    nvidia_smi(tmp_path, "echo 'GPU 0: TITAN RTX (UUID: GPU-a)'")
    assert "1 of 2 GPUs are left" in fails(capsys, 1, "health")
    nvidia_smi(tmp_path, "echo 'Failed to initialize NVML: Unknown Error'; exit 255")
    error = fails(capsys, 1, "health")
    assert "0 of 2 GPUs are left (Failed to initialize NVML: Unknown Error)" in error
    assert "restart the container" in error


def test_health_knows_the_gpus_that_docker_told_the_first_process_alone(
    clean: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = tmp_path / "environ"
    monkeypatch.setattr(container, "FIRST_PROCESS", first)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["health"]) == 0  # Another user's first process cannot be read.
    first.write_bytes(b"HOME=/\0NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b\0")
    assert "nvidia-smi does not run" in fails(capsys, 1, "health")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "void")
    assert main(["health"]) == 0


def test_health_counts_gpus_that_come_as_devices(
    clean: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By CDI, as in Kubernetes: the variable is `void`, and the devices are in the container."""
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "void")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(container, "CONTROL", tmp_path / "nvidiactl")
    assert main(["health"]) == 0  # The coordinator has none.
    (tmp_path / "nvidiactl").touch()
    assert "nvidia-smi does not run" in fails(capsys, 1, "health")
    nvidia_smi(tmp_path, "echo 'GPU 0: TITAN RTX (UUID: GPU-a)'")
    assert "1 of 2 GPUs are left" in fails(capsys, 1, "health")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_what_another_user_wrote_is_told_before_it_is_in_the_way(tmp_path: Path) -> None:
    folder = Path("/tmp") / f"kit-test-{os.getpid()}"  # Nobody has no way into pytest's own.
    folder.mkdir(mode=0o1777)
    folder.chmod(0o1777)
    try:
        (folder / "lost+found").mkdir(mode=0o700)  # Of a disk of its own; no training needs it.
        (folder / "metrics.jsonl").write_text("")
        told = tmp_path / "told"
        with told.open("w") as stream:
            if os.fork() == 0:
                os.setuid(65534)
                stream.write(unchangeable(folder))
                stream.flush()
                os._exit(0)
            os.wait()
        assert told.read_text() == str(folder / "metrics.jsonl")
        assert unchangeable(folder) == ""
    finally:
        shutil.rmtree(folder)


def test_nobody_gains_privileges_below_a_server() -> None:
    code = "from trainer.launcher.process import stay_unprivileged\n"
    code += "stay_unprivileged(); print(*open('/proc/self/status'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=LAUNCH.parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "NoNewPrivs:\t1\n" in done.stdout


def test_a_service_listens_at_its_own_address_among_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_address(["192.0.2.1", "127.0.0.3", "127.0.0.2"]) == "127.0.0.3"
    monkeypatch.setattr(network, "RESOLVED", 0.0)
    assert own_address(["192.0.2.1"]) == "0.0.0.0"
    assert "every interface: 192.0.2.1 is no address of this host" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "ending"), [("rendezvous", signal.SIGTERM), ("coordinator", signal.SIGINT)]
)
def test_the_rendezvous_serves_until_it_is_told_to_end(
    kind: str, ending: signal.Signals, tmp_path: Path
) -> None:
    with hosts(tmp_path, cold=True) as local:
        endpoint = local.rendezvous(script=kind == "rendezvous")
        server = local.tasks[0]
        server.expect(f"serves the coordinator on {endpoint}\n")
        _, port = parse_endpoint(endpoint)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))
        address = find_rendezvous(parse_endpoint(endpoint))
        assert address == "127.0.0.1"
        # A client that only connects must not disturb it.
        second = local.serve(endpoint, script=kind == "rendezvous")
        assert second.wait() == 1
        assert "cannot be served" in second.text
        assert "Traceback" not in second.text
        server.process.send_signal(ending)
        # Its host may be drained while the training continues: an engine must start it again.
        assert server.wait() == NOT_OVER
        assert server.text.endswith(f"ends the coordinator on {ending.name}\n")


def test_the_coordinator_serves_hosts_that_end_with_it(tmp_path: Path) -> None:
    with hosts(tmp_path, cold=True) as local:
        endpoint = local.rendezvous()
        server = local.tasks[0]
        server.expect("serves the coordinator")
        with socket.create_connection(parse_endpoint(endpoint)) as host:
            trains = Report("n1-1", "n1", 1, generation=1, members=("n1-1",))
            host.sendall(encode(trains))
            server.expect("n1 has connected")
            server.process.send_signal(signal.SIGTERM)
            # Both were asked to end: it tells the host when, which saves meanwhile.
            host.sendall(encode(replace(trains, leaving=True, stops=True)))
            server.expect("group 1 stops at the end of a step: n1 ends")
            for _ in range(int(2 * FAREWELL / REPORT_EVERY)):
                with suppress(OSError):
                    host.sendall(encode(replace(trains, leaving=True, stops=True)))
                time.sleep(REPORT_EVERY)
            # On a busy machine this process may be late with a report.
            assert server.process.poll() is None or "n1 is silent" in server.text
        assert server.wait() == NOT_OVER


def test_the_coordinator_leaves_hosts_that_continue(tmp_path: Path) -> None:
    with hosts(tmp_path, cold=True) as local:
        endpoint = local.rendezvous()
        server = local.tasks[0]
        server.expect("serves the coordinator")
        with socket.create_connection(parse_endpoint(endpoint)) as host:
            trains = Report("n1-1", "n1", 1, generation=1, members=("n1-1",))
            server.process.send_signal(signal.SIGTERM)
            while server.process.poll() is None:
                with suppress(OSError):
                    host.sendall(encode(trains))
                time.sleep(REPORT_EVERY)
        assert server.wait() == NOT_OVER


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_hosts_meet_and_train_by_ipv6(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        endpoint = local.rendezvous(address="[::1]")
        job = write_job(tmp_path, epochs=1)
        agents = [local.agent(name, job, endpoint, 1) for name in ("pc1", "pc2")]
        for agent in agents:
            assert agent.wait() == 0, agent.text
            assert f"coordinator {endpoint} answers" in agent.text
            assert "connects to the coordinator from ::1 on interface lo" in agent.text
            assert "NCCL and gloo use 127.0.0.1, the first address of lo" in agent.text


@pytest.mark.parametrize(
    ("version", "old", "new"),
    [
        ("2.6.0+cu124", True, False),
        ("2.8.0", True, False),
        ("2.9.0a0+145a3a7bda.nv25.10", False, True),
        ("2.13.0+cpu", False, True),
        ("", True, False),  # It is not known.
    ],
)
@pytest.mark.parametrize("written", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_a_worker_gets_the_names_of_its_torch(
    version: str, old: bool, new: bool, written: str
) -> None:
    environ = {written: "9"}
    rename_variables(environ, version)
    assert old == ("TORCH_NCCL_TRACE_BUFFER_SIZE" in environ)
    assert not new or "TORCH_FR_BUFFER_SIZE" in environ
    assert set(environ.values()) == {"9"}


def test_torch_warns_of_no_variable_that_kit_sets() -> None:
    environ = {**FAULT_VARIABLES, "TORCH_NCCL_TRACE_CPP_STACK": "1"}
    rename_variables(environ, installed_torch())
    program = (
        "import torch.distributed as d, torch\n"
        "d.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1)\n"
        "d.all_reduce(torch.ones(1)); d.destroy_process_group()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "deprecated" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(("limits", "told"), [("-Hn 3000", "3000"), ("-n 100", "100")])
def test_workers_may_open_as_many_files_as_the_host_allows(limits: str, told: str) -> None:
    """Docker 29 allows 1,024 by default, and lets a process raise that to the hard limit."""
    code = "import os; from trainer.launcher.process import raise_open_files\n"
    code += "raise_open_files(); os.system('ulimit -n')"
    done = subprocess.run(
        ["sh", "-c", f'ulimit -Sn 64; ulimit {limits}; exec "$0" -c "$1"', sys.executable, code],
        cwd=LAUNCH.parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{told}\n"


def test_setup_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)
    lines = ['echo "$TOKEN" >>one', "test -e two && echo three"]
    environ = {**os.environ, "TOKEN": "secret"}
    with pytest.raises(LaunchError, match="`test -e two && echo three` has ended") as caught:
        prepare(lines, environ)
    assert (caught.value.code, caught.value.kind) == (FAILURE, "setup")
    (tmp_path / "two").touch()
    prepare(lines, environ)
    prepare(lines, environ)
    assert (tmp_path / "one").read_text() == "secret\n" * 2
    said = capfd.readouterr().out
    assert said.count("\nthree\n") == 1
    assert said.count("setup was done before") == 1
    assert "secret" not in said
    prepare([*lines, "true"], environ)
    assert (tmp_path / "one").read_text() == "secret\n" * 3


def test_hosts_of_one_machine_run_setup_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    lines = ["sleep 0.2; echo x >>runs"]
    threads = [threading.Thread(target=prepare, args=(lines, os.environ)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (tmp_path / "runs").read_text() == "x\n"


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        (1, "ValueError: x (a.py:1)", "worker"),
        (-signal.SIGABRT, "ValueError: x (a.py:1)", "worker"),  # gloo may abort at the end.
        (-signal.SIGABRT, '"terminate called without an active exception"', "killed"),
        (-signal.SIGSEGV, "", "killed"),
        (-signal.SIGKILL, "ValueError: x (a.py:1)", "killed"),
        (-signal.SIGABRT, "ModuleNotFoundError: No module named 'x' (a.py:1)", "input"),
    ],
)
def test_a_worker_that_raises_has_failed_by_itself(code: int, said: str, kind: str) -> None:
    failure = worker_failure("rank 1 has failed", code, said)
    assert (failure.kind, failure.code) == (kind, 2 if kind == "input" else 1)


def test_the_coordinator_waits_for_a_host_that_has_only_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "ABSENT", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    asked = Report("a", "n1", 1, asks=True)

    async def told(report: Report) -> None:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(encode(report))
        await reader.readline()
        writer.close()

    async def serve() -> None:
        server = Server(rounds.Rounds(time.monotonic))
        serving = asyncio.create_task(server.serve(listener, lambda: None))
        await told(asked)
        await asyncio.sleep(1)
        assert not serving.done()
        await told(replace(asked, asks=False))
        assert await asyncio.wait_for(serving, DEADLINE) == 0

    asyncio.run(serve())
