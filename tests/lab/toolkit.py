"""A stand-in for NVIDIA's repository: a package with the lab's runtime and hook, signed."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from tests.lab.host import run
from tests.lab.settings import HERE, LabError

NAME = "nvidia-container-toolkit"
VERSION = "1.18.1"
CONTROL = f"""\
Package: {NAME}
Version: {VERSION}-1
Architecture: all
Maintainer: the lab <lab@localhost>
Depends: jq
Description: stand-in for NVIDIA's container toolkit
"""
CONFIG = """\
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
load-kmods = true

[nvidia-container-runtime]
mode = "auto"
runtimes = ["runc", "crun"]
"""
NVIDIA_CTK = (
    f"#!/bin/sh\necho 'NVIDIA Container Toolkit CLI version {VERSION}'\necho 'commit: lab'\n"
)


def package(folder: Path) -> Path:
    """Build the package in a folder and return it."""
    root = folder / "root"
    programs = root / "usr" / "bin"
    programs.mkdir(parents=True)
    for name in ("nvidia-container-runtime", "nvidia-container-runtime-hook"):
        shutil.copy(HERE / "node" / name, programs / name)
    (programs / "nvidia-ctk").write_text(NVIDIA_CTK)
    (programs / "nvidia-ctk").chmod(0o755)
    (root / "etc/nvidia-container-runtime").mkdir(parents=True)
    (root / "DEBIAN").mkdir()
    (root / "etc/nvidia-container-runtime/config.toml").write_text(CONFIG)
    (root / "DEBIAN/control").write_text(CONTROL)
    (root / "DEBIAN/conffiles").write_text("/etc/nvidia-container-runtime/config.toml\n")
    made = folder / f"{NAME}_{VERSION}-1_all.deb"
    run("dpkg-deb", "--root-owner-group", "--build", root, made)
    shutil.rmtree(root)
    return made


def repository(folder: Path) -> None:
    """Build a mirror of NVIDIA's repository: its key, and the packages for amd64 and arm64.

    Raises:
        LabError: This machine has no gpg.
    """
    missing = [program for program in ("gpg", "gpg-agent") if shutil.which(program) is None]
    if missing:
        names = " ".join(missing)
        raise LabError(f"a signed repository needs {names}: apt-get install {names}", 2)
    for architecture in ("amd64", "arm64"):
        place = folder / "stable" / "deb" / architecture
        place.mkdir(parents=True)
        made = package(place)
        content = made.read_bytes()
        fields = f"Filename: ./{made.name}\nSize: {len(content)}\nSHA256: {_sha256(content)}\n"
        packages = (CONTROL + fields).encode()
        (place / "Packages").write_bytes(packages)
        release = f"SHA256:\n {_sha256(packages)} {len(packages)} Packages\n"
        (place / "Release").write_text(release)
    _sign(folder)


def _sign(folder: Path) -> None:
    keys = folder / ".gnupg"
    keys.mkdir(mode=0o700)
    gpg = ("gpg", "--homedir", keys, "--batch", "--quiet", "--pinentry-mode", "loopback")
    who = "lab@localhost"
    run(*gpg, "--passphrase", "", "--quick-generate-key", who, "rsa3072", "sign", "never")
    (folder / "gpgkey").write_text(run(*gpg, "--armor", "--export", who) + "\n")
    for release in folder.rglob("Release"):
        target = release.with_name("InRelease")
        run(*gpg, "--passphrase", "", "--clearsign", "--output", target, release)
    run("gpgconf", "--homedir", keys, "--kill", "all", check=False)
    shutil.rmtree(keys, ignore_errors=True)  # The agent that ends removes its sockets itself.


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
