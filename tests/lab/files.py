"""The files of a lab: keys, the nodes' configuration, and the configuration of SSH."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.lab.host import run
from tests.lab.settings import REGISTRY, Gpu, Settings


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove the lab's files in a folder; also the folder, unless it has other files."""
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def make_keys(settings: Settings) -> None:
    """Make the keys of the lab: a login key, the hosts' keys, the registry's certificate."""
    folder = settings.keys
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("key", "host_key"):
        if not (folder / name).exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "kit-lab", "-f", folder / name)
    if not (folder / "registry.crt").exists():
        host = REGISTRY.partition(":")[0]
        names = ("-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}")
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        files = ("-keyout", folder / "registry.key", "-out", folder / "registry.crt")
        run("openssl", "req", "-x509", "-days", "3650", *names, *kind, *files)


def node_files(settings: Settings, node: str, gpus: list[Gpu] | None = None) -> None:
    """Write a node's GPUs and daemon.json; edits are kept unless there are new GPUs."""
    folder = settings.node(node)
    trust = folder / "docker" / "certs.d" / REGISTRY
    trust.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(settings.keys / "registry.crt", trust / "ca.crt")
    config = folder / "docker" / "daemon.json"
    if gpus is None and (config.exists() or settings.bare(node).exists()):
        return
    settings.bare(node).unlink(missing_ok=True)
    present = settings.gpus(node) if gpus is None else gpus
    (folder / "gpus").write_text("".join(one.line() for one in present))
    config.write_text(json.dumps(daemon_json(present), indent=2) + "\n")


def daemon_json(gpus: list[Gpu]) -> dict[str, Any]:
    """The daemon.json that kit renders for such a host; a test compares both."""
    log = {"log-driver": "json-file", "log-opts": {"max-size": "10m", "max-file": "3"}}
    if not gpus:
        return log
    return {
        "default-runtime": "nvidia",
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}},
        "node-generic-resources": [f"kit_gpu={one.uuid}" for one in gpus],
        **log,
    }


def write_ssh_config(settings: Settings, nodes: Iterable[str]) -> None:
    """Write a configuration for SSH, and a program `ssh` that uses it."""
    host_key = (settings.keys / "host_key.pub").read_text()
    (settings.keys / "known_hosts").write_text(f"kit-lab {host_key}")
    hosts = [
        f"Host {node} {settings.address(node)}\n  HostName {settings.address(node)}\n"
        for node in nodes
    ]
    every = " ".join(f"{node} {settings.address(node)}" for node in nodes)
    settings.ssh_config.write_text(
        "".join(hosts) + f"Host {every}\n"
        "  User root\n"
        f"  IdentityFile {settings.keys / 'key'}\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {settings.keys / 'known_hosts'}\n"
        "  GlobalKnownHostsFile /dev/null\n"
        "  HostKeyAlias kit-lab\n"
        "  StrictHostKeyChecking yes\n"
        # The default, which resists quantum computers, takes 0.07 s of a core on each side.
        "  KexAlgorithms curve25519-sha256\n"
        "  ConnectTimeout 15\n"
    )
    program = settings.folder / "bin" / "ssh"
    program.parent.mkdir(exist_ok=True)
    # Without this program itself, which may be the first in PATH.
    others = [path for path in os.get_exec_path() if Path(path) != program.parent]
    real = shutil.which("ssh", path=os.pathsep.join(others))
    program.write_text(f'#!/bin/sh\nexec {real} -F {settings.ssh_config} "$@"\n')
    program.chmod(0o755)


def inventory(settings: Settings, nodes: Iterable[str], *, write: bool = False) -> str:
    """Return the inventory.yaml that describes the nodes to kit."""
    lines = [f"cluster: {settings.name}", "engine: swarm", "hosts:"]
    for node in nodes:
        lines += [f"  {node}:", f"    address: {settings.address(node)}", f"    ssh: root@{node}"]
        if node == "n1":
            lines.append("    roles: [manager, storage]")
        gpus = settings.gpus(node)
        if gpus:
            lines.append("    gpus:")
        lines += [
            f"      - {{uuid: {one.uuid}, model: {one.model}, memory: {one.memory // 1024}GiB}}"
            for one in gpus
        ]
    text = "\n".join([*lines, "network: {speed: 1Gbit}", ""])
    if write:
        (settings.folder / "inventory.yaml").write_text(text)
    return text
