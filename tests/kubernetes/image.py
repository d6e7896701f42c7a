"""The images of the tests as archives, as `docker save` writes them, without Docker.

python -m tests.kubernetes.image FILE            the stand-in of a training
python -m tests.kubernetes.image FILE --trainer  the trainer, with this machine's PyTorch (1 GB)

Then for example `kind load image-archive FILE`.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tarfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from tests.lab.images import PYTHON, debian_suite, root_file_system
from tests.lab.settings import HERE, PROJECT, STAND_IN, load

TRAINER = STAND_IN.replace("stand-in", "trainer-cpu")
TORCH = "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n"
"""The launcher looks for torch, its version and scikit-learn; the stand-in uses neither."""
NVIDIA_SMI = """\
#!/bin/sh
# Shows the GPUs that a DRA driver has given to this container, by the variable that it sets.
given=$(tr '\\0' '\\n' </proc/1/environ | sed -n 's/^NVIDIA_VISIBLE_DEVICES=//p' | tr , ' ')
number=0
for uuid in $given; do
    case $1 in
        -L) echo "GPU $number: Pretended (UUID: $uuid)" ;;
        *) echo "$number, $uuid, Pretended, 0, 0, 12288, 30, 20.00, 170.00" ;;
    esac
    number=$((number + 1))
done
case $* in *--loop=*) exec sleep 86400 ;; esac
"""
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "KIT_DEVICE": "cpu",
    "PYTHONPATH": "/opt/kit",
    "PYTHONUNBUFFERED": "1",
}


def code_layer() -> bytes:
    """Return the trainer, and the folders that jobs mount."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for folder in ("checkpoints", "data", "dumps"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(entry)
        tar.add(PROJECT / "trainer", "opt/kit/trainer", filter=_plain)
    return packed.getvalue()


def stand_in_layer() -> bytes:
    """Return the stand-in's training, and what the launcher looks for."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(HERE / "stand_in" / "train.py", "opt/kit/trainer/train.py", filter=_plain)
        for name in ("torch", "sklearn"):
            _add(tar, f"opt/kit/{name}/__init__.py", b"")
        _add(tar, "usr/bin/nvidia-smi", NVIDIA_SMI.encode(), mode=0o755)
        _add(tar, "opt/kit/torch-2.9.0.dist-info/METADATA", TORCH.encode())
    return packed.getvalue()


def packages_layer() -> bytes:
    """Return PyTorch and scikit-learn of this Python, with all that they need."""
    packed, found, names = io.BytesIO(), set[str](), ["torch", "scikit-learn"]
    with tarfile.open(fileobj=packed, mode="w") as tar:
        while names:
            name = re.split(r"[^\w.-]", names.pop())[0]
            if name in found:
                continue
            found.add(name)
            try:
                package = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue  # Of other systems, or of an extra.
            names += package.requires or ()
            for file in package.files or ():
                if file.parts[0] != ".." and "__pycache__" not in file.parts:
                    tar.add(str(file.locate()), f"opt/kit/{file}", filter=_plain)
    return packed.getvalue()


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.mtime = member.uid = member.gid = 0
    return None if "__pycache__" in member.name else member


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def write(tag: str, layers: Mapping[str, bytes], target: Path) -> None:
    """Write the image of these layers."""
    sums = [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in layers.values()]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
            "Entrypoint": ["python3", "/opt/kit/trainer/launch.py"],
        },
        "rootfs": {"type": "layers", "diff_ids": sums},
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": list(layers)}]
    with tarfile.open(target, "w") as tar:
        _add(tar, "config.json", json.dumps(config).encode())
        for name, content in layers.items():
            _add(tar, name, content)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def main() -> None:
    """Make the archive."""
    suite = debian_suite(f"{sys.version_info.major}.{sys.version_info.minor}")
    base = root_file_system(load(), "python", suite, PYTHON)
    layers = {"base.tar": base.read_bytes(), "code.tar": code_layer()}
    if sys.argv[2:] == ["--trainer"]:
        write(TRAINER, {**layers, "packages.tar": packages_layer()}, Path(sys.argv[1]))
    else:
        write(STAND_IN, {**layers, "stand-in.tar": stand_in_layer()}, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
