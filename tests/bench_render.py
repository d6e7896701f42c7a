"""Times `kit render` for 1,000 and 4,000 hosts: `python tests/bench_render.py`.

Every host has eight GPUs with UUIDs; every second one keeps one of them for inference, so that it
has a service of its own. A run is a whole process.
"""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

RUNS = 5
SIZES = (1_000, 4_000)
GPUS = 8
JOB = """\
image: registry.lab:5000/trainer:0.1.0
train: {dataset: cifar10, model: resnet18, epochs: 90, batch_size: 32}
"""


def inventory(hosts: int) -> str:
    """Return an inventory of `hosts` hosts, the same one every time."""
    lines = ["cluster: bench", "engine: swarm", "hosts:"]
    for number in range(hosts):
        lines += [
            f"  gpu{number:04}:",
            f"    address: 10.{number // 65_536}.{number // 256 % 256}.{number % 256}",
        ]
        if number < 3:
            lines.append("    roles: [manager]")
        lines.append("    gpus:")
        for index in range(GPUS):
            name = uuid.uuid5(uuid.NAMESPACE_DNS, f"{number}.{index}")
            use = ", use: inference" if number % 2 and index == GPUS - 1 else ""
            lines.append(f"      - {{uuid: GPU-{name}, model: H100, memory: 80GiB{use}}}")
    lines.append("network: {subnet: 172.16.0.0/16}")
    return "\n".join(lines) + "\n"


def render(folder: Path, output: str) -> float:
    """Render as a process of its own; return its seconds."""
    command = [sys.executable, "-m", "kit", "render", "--output", output]
    # As in daily use, the modules' byte code lies ready.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    medians: dict[tuple[int, str], float] = {}
    for hosts in SIZES:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (folder / "inventory.yaml").write_text(inventory(hosts))
            (folder / "jobs").mkdir()
            (folder / "jobs" / "resnet.yaml").write_text(JOB)
            times: dict[str, list[float]] = {"into an empty folder": [], "unchanged": []}
            render(folder, "first")
            for run in range(RUNS):
                # Not the same folder emptied: ext4 is slow with inodes that it has just freed.
                times["into an empty folder"].append(render(folder, f"new-{run}"))
            for _ in range(RUNS):
                times["unchanged"].append(render(folder, "first"))
            files = [path for path in (folder / "first").rglob("*") if path.is_file()]
            size = sum(path.stat().st_size for path in files)
            print(f"{hosts:,} hosts, {GPUS} GPUs each: {len(files):,} files, {size:,} bytes")
        for what, seconds in times.items():
            least, median, most = min(seconds), sorted(seconds)[RUNS // 2], max(seconds)
            medians[hosts, what] = median
            print(f"  {what:<20}  min {least:.2f} s  median {median:.2f} s  max {most:.2f} s")
    for what in ("into an empty folder", "unchanged"):
        ratio = medians[SIZES[1], what] / medians[SIZES[0], what]
        print(f"{SIZES[1]:,} hosts take {ratio:.2f} times as long as {SIZES[0]:,} ({what})")


if __name__ == "__main__":
    main()
