"""Fetching a data set to one and to several hosts at once.

    python -m tests.bench_fetch [--hosts 1 4 8] [--speed 1gbit] [--size 1024] [--folder /tmp]

Each host is a network namespace of this machine with its own link, shaped by tc's token bucket
filter in both directions. One host has the store, its web server and its agent; the others begin to
fetch at the same moment. Seconds are until the last host is ready: fetched, verified, on the disk.
Beside it curl, and rsync if it is installed, which fetch from the one server. All hosts share the
processors and the disk of this machine; where these are the limit, a lower --speed shows the
network's part. Needs root, ip, tc and curl.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench_links import network
from tests.trainer.datahosts import Agent, read_lines
from tests.trainer.hosts import ROOT, Hosts, hosts
from trainer.datasets import store

ORIGIN = "10.91.0.1"
PORT, PEERS, RSYNC = 8090, 6881, 8730
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def make_store(folder: Path, size: int, files: int) -> None:
    """Add a data set of random content, `size` bytes."""
    source = folder / "source"
    source.mkdir()
    for number in range(files):
        with (source / f"part-{number}").open("wb") as file:
            for _ in range(size // files // 2**20):
                file.write(random.randbytes(2**20))
    store.add(folder / "store", "set", str(source), "", None, store.Reporter(json=True))
    shutil.rmtree(source)


def sent(name: str) -> int:
    """The bytes that a namespace has sent."""
    show = ("ip", "netns", "exec", name, "cat", "/proc/net/dev")
    found = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    line = re.search(r"eth0:(.*)", found)
    return int(line[1].split()[8]) if line else 0


def start_origin(local: Hosts, name: str, folder: Path) -> None:
    """Start the web server and the agent of the storage host."""
    inside = ("ip", "netns", "exec", name)
    place = str(folder / "store")
    words: tuple[str, ...] = (
        "-m",
        "trainer.datasets.server",
        "--store",
        place,
        "--port",
        str(PORT),
    )
    local.start("server", words, {"PYTHONPATH": ROOT}, prefix=inside).expect("offers")
    words = ("-m", "trainer.datasets.agent", "--cache", place, "--store", place)
    words += ("--server", f"http://{ORIGIN}:{PORT}", "--port", str(PEERS))
    local.start("store", words, {"PYTHONPATH": ROOT}, prefix=inside).expect("keeps")


def start_agent(local: Hosts, name: str, folder: Path, peers: Sequence[str]) -> Agent:
    """Start the agent of a host."""
    words: tuple[str, ...] = ("-m", "trainer.datasets.agent", "--cache", str(folder / name))
    words += ("--server", f"http://{ORIGIN}:{PORT}", "--port", str(PEERS))
    words += ("--peers", ",".join(f"{peer}:{PEERS}" for peer in peers))
    inside = ("ip", "netns", "exec", name)
    task = local.start(name, words, {"PYTHONPATH": ROOT}, prefix=inside)
    task.expect("keeps")
    return Agent(task, folder / name, PEERS)


def fetch_all(agents: Sequence[Agent]) -> tuple[float, list[str]]:
    """Fetch to all hosts at once; return the seconds, and what went wrong."""
    wrong: list[str] = []

    def fetch(agent: Agent) -> None:
        last = read_lines(agent.ask("set"))[-1]
        if last["state"] != "ready":
            wrong.append(str(last))

    began = time.monotonic()
    threads = [threading.Thread(target=fetch, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began, wrong


def by_agents(folder: Path, names: list[str]) -> tuple[float, int]:
    """Seconds until all hosts have it, and the bytes that the origin has sent."""
    with hosts(folder, cold=True) as local:
        start_origin(local, names[0], folder)
        peers = [f"10.91.0.{number + 1}" for number in range(len(names))]
        agents = [start_agent(local, name, folder, peers) for name in names[1:]]
        time.sleep(3)  # The store's agent offers what it has.
        before = sent(names[0])
        seconds, wrong = fetch_all(agents)
        if wrong:
            sys.exit(f"{wrong}\n{local.tasks[-1].text}")
        out = sent(names[0]) - before
    for name in names[1:]:
        shutil.rmtree(folder / name)
    return seconds, out


def by_command(folder: Path, names: list[str], command: str) -> tuple[float, int]:
    """As `by_agents`, with one command on each host; {target} is its folder."""
    with hosts(folder, cold=True) as local:
        start_origin(local, names[0], folder)
        if command.startswith("rsync"):
            start_rsync(local, names[0], folder)
        before, began, running = sent(names[0]), time.monotonic(), []
        for name in names[1:]:
            (folder / name).mkdir()
            line = command.format(target=folder / name)
            inside = ("ip", "netns", "exec", name, "sh", "-c", f"{line} && sync -f {folder / name}")
            running.append(subprocess.Popen(inside, stdout=subprocess.DEVNULL))
        if any(process.wait() for process in running):
            sys.exit(f"{command} has failed")
        seconds, out = time.monotonic() - began, sent(names[0]) - before
    for name in names[1:]:
        shutil.rmtree(folder / name)
    return seconds, out


def start_rsync(local: Hosts, name: str, folder: Path) -> None:
    """Start rsync's daemon on the storage host."""
    settings = folder / "rsyncd.conf"
    text = f"use chroot = no\n[set]\npath = {folder}/store/set/1/data\nuid = root\ngid = root\n"
    settings.write_text(text)
    inside = ("ip", "netns", "exec", name)
    daemon = f"import os; os.execvp('rsync', ['rsync', '--daemon', '--no-detach', '--port={RSYNC}',"
    code = f"{daemon} '--config={settings}'])"
    local.start("rsync", ("-c", code), {}, prefix=inside)
    time.sleep(1)


def commands(files: int) -> dict[str, str]:
    """The commands to compare with."""
    url = f"http://{ORIGIN}:{PORT}/set/1/data/part-[0-{files - 1}]"
    found = {"curl": f"curl -sf '{url}' -o '{{target}}/part-#1'"}
    if shutil.which("rsync"):
        found["rsync"] = f"rsync -a rsync://{ORIGIN}:{RSYNC}/set/ {{target}}/"
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--speed", default="1gbit", help="as tc has it")
    parser.add_argument("--size", type=int, default=1024, help="MiB")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--folder", default=None, help="where stores and caches are")
    parser.add_argument("--ways", nargs="+", default=["kit", *commands(8)])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    size = options.size * 2**20
    digits, unit = re.fullmatch(r"([\d.]+)(\w+)", options.speed).groups()  # type: ignore[union-attr]
    ideal = size * 8 / (float(digits) * UNITS[unit])
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        folder.chmod(0o755)
        make_store(folder, size, options.files)
        os.sync()
        for way in options.ways:
            alone = 0.0
            for count in options.hosts:
                with network(count + 1, options.speed) as names:
                    if way == "kit":
                        seconds, out = by_agents(folder, names)
                    else:
                        seconds, out = by_command(folder, names, commands(options.files)[way])
                alone = alone or seconds
                line = {"way": way, "hosts": count, "seconds": round(seconds, 2)}
                line |= {"link": round(ideal / seconds, 3), "times": round(seconds / alone, 2)}
                line |= {"origin": round(out / size, 2)}
                found.append(line)
                text = (
                    "{way:6} {hosts} hosts: {seconds:6.2f} s, {link:.1%} of a link, {times} times"
                )
                text += " one host's time; the origin sent {origin} times the data"
                out_stream = sys.stderr if options.json else sys.stdout
                print(text.format(**line), file=out_stream, flush=True)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
