"""The GPUs of the hosts as they change: one process on each host, over one connection."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from kit.top.smi import Gpu, parse

AGAIN = 10.0
"""Seconds until a lost connection is tried again."""
NOT_FOUND = 127
"""The shell's exit status for a program that does not exist."""
FIRST = 15.0
"""The most seconds to wait for the first answers."""


@dataclass(slots=True)
class Feed:
    """The newest GPUs of a host by UUID, and the reason why there are none, or not all."""

    gpus: dict[str, Gpu] = field(default_factory=dict)
    message: str = ""


class Feeds:
    """Reads the GPUs of hosts in threads.

    nvidia-smi stays resident: starting it takes longer than a query, and wakes GPUs without
    persistence mode. DCGM exporter is not on every host, and Docker's API knows no GPUs.
    """

    def __init__(self, commands: Mapping[str, list[str]], *, loops: bool) -> None:
        """Read from a command for each host; `loops`: the commands do not end."""
        self.feeds = {name: Feed() for name in commands}
        self._loops = loops
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._read, args=(name, command), daemon=True)
            for name, command in commands.items()
        ]
        self._first = {name: threading.Event() for name in commands}
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Wait until each host has answered or failed, or until it takes too long."""
        for name, first in self._first.items():
            if not first.wait(FIRST):
                self.feeds[name].message = f"no answer within {FIRST:.0f} s"
        if not self._loops:
            for thread in self._threads:
                thread.join(FIRST)

    def close(self) -> None:
        """End all processes; nvidia-smi on the hosts ends with its connection."""
        self._over.set()
        for process in list(self._processes.values()):
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(2)
        for thread in self._threads:
            thread.join(2)

    def _read(self, name: str, command: list[str]) -> None:
        feed = self.feeds[name]
        while not self._over.is_set():
            status, message = self._follow(name, command, feed)
            if status == NOT_FOUND:
                message = "has no NVIDIA driver"
            if self._loops or (status and not feed.gpus):
                feed.gpus, feed.message = {}, message or "nvidia-smi has ended"
            self._first[name].set()
            if not self._loops or status == NOT_FOUND or self._over.wait(AGAIN):
                return

    def _follow(self, name: str, command: list[str], feed: Feed) -> tuple[int, str]:
        """Read one process to its end; return its exit status and its last message."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # kit handles Ctrl-C, not its ssh process.
            )
        except OSError as error:
            return 1, f"{command[0]}: {error.strerror}"
        self._processes[name] = process
        last = message = ""
        round_: set[str] = set()
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                gpu = parse(line)
                if gpu is None:
                    last = message = line.strip() or message
                    feed.message = message
                    continue
                if not round_ or gpu.uuid in round_:
                    # A new round begins. A lost GPU has an error line in each round, or no line.
                    feed.gpus = {uuid: feed.gpus[uuid] for uuid in round_}
                    feed.message, message, round_ = message, "", set()
                round_.add(gpu.uuid)
                feed.gpus = {**feed.gpus, gpu.uuid: gpu}
                self._first[name].set()
        return process.wait(), last
