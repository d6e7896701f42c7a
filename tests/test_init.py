"""`kit init --hosts` and `kit discover` on machines as people have them, through an `ssh` of here.

The programs are real; only the machines are not: `ssh` prints what the probe printed there.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from tests.sandbox import Result, kit, snapshot
from tests.test_discover import printed

Machines = Callable[[Mapping[str, str]], None]
IPV6_ALONE = {
    "host": "node1\nLinux 6.8.0-60\nx86_64\nfd00::20 50000 fd00::1 22",
    "addresses": "2: eno1    inet6 fd00::1/64 scope global \\  x\n"
    "2: eno1    inet6 fe80::1/64 scope link \\  x",
    "routes": "Iface\tDestination\tGateway\tFlags",
}


@pytest.fixture
def machines(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """Have `ssh` print a machine's answer; other machines do not answer."""
    programs = tmp_path_factory.mktemp("bin")
    (programs / "ssh").write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\n'
        f'cat {shlex.quote(str(programs))}/"answer of $2" 2>/dev/null && exit\n'
        'echo "ssh: connect to host $2 port 22: No route to host" >&2; exit 255\n'
    )
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def answer(outputs: Mapping[str, str]) -> None:
        for name, text in outputs.items():
            (programs / f"answer of {name}").write_text(text)

    return answer


def inventory(folder: Path) -> dict[str, dict[str, object]]:
    hosts = yaml.safe_load((folder / "inventory.yaml").read_text())["hosts"]
    assert isinstance(hosts, dict)
    return hosts


def init(folder: Path, hosts: str) -> Result:
    return kit(folder, "init", "pool", "--hosts", hosts)


def test_a_host_with_ipv6_alone_becomes_a_project_that_renders(
    machines: Machines, tmp_path: Path
) -> None:
    machines({"fd00::1": printed(**IPV6_ALONE)})
    result = init(tmp_path, "fd00::1")
    assert (result.status, result.err) == (0, "")
    text = (tmp_path / "pool/inventory.yaml").read_text()
    assert 'registry: {address: "[fd00::1]:5000", host: node1}' in text
    assert (
        'image: "[fd00::1]:5000/trainer:0.2.0"' in (tmp_path / "pool/jobs/digits.yaml").read_text()
    )
    assert "it has no IPv4 address" in result.out
    assert kit(tmp_path / "pool", "render", "--check").status == 0


def test_several_hosts_with_ipv6_alone_use_compose(machines: Machines, tmp_path: Path) -> None:
    second = {name: text.replace("fd00::1", "fd00::2") for name, text in IPV6_ALONE.items()}
    second["host"] = second["host"].replace("node1", "node2")
    bare = {"gpus": "", "gpu_query": ""}
    machines({"a": printed(**IPV6_ALONE), "b": printed(**second, **bare)})
    result = init(tmp_path, "a,b")
    assert (result.status, result.err) == (0, "")
    assert "engine: compose" in (tmp_path / "pool/inventory.yaml").read_text()


@pytest.mark.parametrize(
    ("folder", "cluster"), [("2024", "2024"), ("GPU_Cluster", "gpu-cluster"), ("__", "pool")]
)
def test_a_cluster_has_the_name_of_its_folder(
    machines: Machines, tmp_path: Path, folder: str, cluster: str
) -> None:
    machines({"pc2": printed()})
    assert kit(tmp_path, "init", folder, "--hosts", "pc2").status == 0
    assert (tmp_path / folder / "compose" / cluster / "plan.json").exists()


FAILURES = {
    "a host that does not answer": "fd00::1,gone",
    "a machine by two names": "fd00::1,node1.lab",
}


@pytest.mark.parametrize("hosts", FAILURES.values(), ids=FAILURES)
def test_a_failure_leaves_nothing_and_a_second_try_works(
    machines: Machines, tmp_path: Path, hosts: str
) -> None:
    answer = printed(**IPV6_ALONE)
    machines({"fd00::1": answer, "node1.lab": answer})
    before = snapshot(tmp_path)
    result = init(tmp_path, hosts)
    assert result.status == 1
    assert hosts.partition(",")[2] in result.err
    assert snapshot(tmp_path) == before
    assert init(tmp_path, "fd00::1").status == 0


def test_a_file_that_cannot_be_written_takes_the_others_back(
    machines: Machines, tmp_path: Path
) -> None:
    """A file where a folder should be, as a full disk or a path without rights."""
    machines({"pc2": printed()})
    folder = tmp_path / "deep/pool"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("mine\n")
    (folder / "compose").write_text("mine\n")
    before = snapshot(tmp_path)
    result = kit(tmp_path, "init", "deep/pool", "--hosts", "pc2")
    assert (result.status, snapshot(tmp_path)) == (1, before)
    (folder / "compose").unlink()
    assert kit(tmp_path, "init", "deep/pool", "--hosts", "pc2").status == 0
    assert (folder / "README.md").read_text() == "mine\n"


def test_a_rendered_tree_of_before_is_not_overwritten(machines: Machines, tmp_path: Path) -> None:
    machines({"pc2": printed()})
    (tmp_path / "pool/compose/pool").mkdir(parents=True)
    result = init(tmp_path, "pc2")
    assert (result.status, result.err.splitlines()[0]) == (
        2,
        "kit: pool holds compose/pool already",
    )


def named(hostname: str, number: int) -> str:
    own = f"192.168.8.{number}"
    return printed(
        host=f"{hostname}\nLinux\nx86_64\n192.168.8.20 50000 {own} 22",
        addresses=f"2: eno1    inet {own}/24 scope global eno1",
        gpus="",
        gpu_query="",
    )


NAMES = [
    ("lab_gpu1", "GPU_Server_01", "gpu-server-01"),
    ("4090", "4090", "4090"),
    ("ops@box.lab.example.org", "Node.7.example.org", "node"),
    ("gpu-a", "localhost.localdomain", "gpu-a"),
    ("192.168.8.9", "localhost", "host-192-168-8-9"),
    ("lab_gpu2", "(none)", "lab-gpu2"),
    ("gpu.rack+3=b", "-gpu-", "gpu"),
    ("büro", "a" * 70, "a" * 63),
    ("me@corp.example@gpu7", "null", "null"),
]
"""The alias in ~/.ssh/config, the machine's own name, its name in the inventory."""


def test_aliases_and_host_names_that_are_no_dns_labels(machines: Machines, tmp_path: Path) -> None:
    machines({login: named(own, at) for at, (login, own, _) in enumerate(NAMES, 1)})
    (tmp_path / "pool").mkdir()
    logins = [login for login, _, _ in NAMES]
    result = kit(tmp_path / "pool", "discover", *logins, "--yes")
    assert (result.status, result.err) == (0, "")
    assert list(inventory(tmp_path / "pool")) == [name for _, _, name in NAMES]
    assert "the host name GPU_Server_01 cannot be a name here" in result.out
    # Of all, also of the numbers and of `null`, kit reads what it wrote.
    assert kit(tmp_path / "pool", "discover", "--yes").out.endswith("nothing to change\n")


def test_a_host_that_cannot_be_named_lets_the_others_go_on(
    machines: Machines, tmp_path: Path
) -> None:
    machines({"a": named("pc1", 1), "b": named("pc1", 2), "c": named("pc3", 3)})
    result = kit(tmp_path, "discover", "a", "b", "c", "--yes")
    assert result.status == 1
    assert "kit: a and b have the same host name, pc1\n" in result.err
    assert list(inventory(tmp_path)) == ["pc1", "pc3"]
