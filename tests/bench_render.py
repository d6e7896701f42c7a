"""Times kit's commands for 1,000 and 4,000 hosts: `python tests/bench_render.py`.

Every host has eight GPUs with UUIDs; every second one keeps one of them for inference, so that it
has a service of its own. A run is a whole process. The lower limit is a plain loop of Jinja over
the same inventory: it reads the YAML, checks nothing, and writes one service for each host.
"""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

RUNS = 5
SIZES = (1_000, 4_000)
GPUS = 8
JOB = """\
image: registry.lab:5000/trainer:0.2.0
train: {dataset: cifar10, model: resnet18, epochs: 90, batch_size: 32}
"""
LOOP = """\
import jinja2, pathlib, yaml

TEMPLATE = '''services:
{% for name, host in hosts.items() %}
{% set gpus = host.gpus | rejectattr("use", "defined") %}
  train-on-{{ name }}:
    image: {{ image }}
    environment:
      KIT_HOST: {{ name }}
      KIT_ADDRESS: {{ host.address }}
      NVIDIA_VISIBLE_DEVICES: {{ gpus | join(",", attribute="uuid") }}
    deploy:
      placement: {constraints: [node.labels.kit.host == {{ name }}]}
{% endfor %}
'''
hosts = yaml.load(pathlib.Path("inventory.yaml").read_text(), yaml.CSafeLoader)["hosts"]
job = yaml.load(pathlib.Path("jobs/resnet.yaml").read_text(), yaml.CSafeLoader)
text = jinja2.Template(TEMPLATE).render(hosts=hosts, image=job["image"])
pathlib.Path("loop.yaml").write_text(text)
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


def commands(hosts: int, run: int) -> Iterator[tuple[str, list[str]]]:
    """Yield what is timed in one turn, so that slow moments of the machine meet all of it."""
    yield "a plain Jinja loop", ["-c", LOOP]
    yield "plan", ["-m", "kit", "plan"]
    # Not the same folder emptied: ext4 is slow with inodes that it has just freed.
    yield "render, into an empty folder", ["-m", "kit", "render", "--output", f"new-{run}"]
    yield "render, unchanged", ["-m", "kit", "render", "--output", "new-0"]
    yield "split --train all", ["-m", "kit", "split", "--train", "all", "--dry-run"]
    # A number lets kit choose the GPUs.
    yield "split --infer HOSTS", ["-m", "kit", "split", "--infer", str(hosts), "--dry-run"]


def seconds(folder: Path, arguments: list[str]) -> float:
    """Run a Python process; return its seconds."""
    # As in daily use, the modules' byte code lies ready.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, check=True, capture_output=True
    )
    return time.perf_counter() - start


def medians(hosts: int) -> dict[str, float]:
    """Return the median of each command's seconds."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "inventory.yaml").write_text(inventory(hosts))
        (folder / "jobs").mkdir()
        (folder / "jobs" / "resnet.yaml").write_text(JOB)
        for run in range(RUNS + 1):
            for what, arguments in commands(hosts, run):
                spent = seconds(folder, arguments)
                if run:  # The first turn fills the caches.
                    times.setdefault(what, []).append(spent)
    return {what: sorted(spent)[RUNS // 2] for what, spent in times.items()}


def main() -> None:
    found = [medians(hosts) for hosts in SIZES]
    print(f"seconds of a whole process, median of {RUNS}; {GPUS} GPUs for each host")
    print(f"{'':<30}" + "".join(f"{f'{hosts:,} hosts':>14}" for hosts in SIZES))
    for what in found[0]:
        print(f"{what:<30}" + "".join(f"{each[what]:>14.2f}" for each in found))


if __name__ == "__main__":
    main()
