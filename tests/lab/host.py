"""This machine: the lab's requirements, and the engine that runs the nodes as containers."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.settings import LabError, Settings

DEADLINE = 600
"""Seconds: a slow mirror takes minutes, but a hung program must not block the lab for ever."""

ANSWER = 10
"""Seconds in which an engine answers; one in a paused node does not."""

PACKAGES = {
    "dockerd": "docker.io",
    "docker": "docker-cli" if shutil.which("dockerd") else "docker.io",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "ip": "iproute2",
    "openssl": "openssl",
    "ssh": "openssh-client",
}


def run(
    *command: str | Path, stdin: bytes | None = None, check: bool = True, seconds: float = DEADLINE
) -> str:
    """Run a program and return what it printed.

    Raises:
        LabError: It failed; the message has its output.
    """
    try:
        done = subprocess.run(
            [str(word) for word in command],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"{Path(command[0]).name}: no answer within {seconds:.0f} s") from None
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise LabError(f"{Path(command[0]).name}: {said or f'exit status {done.returncode}'}")
    return done.stdout.decode(errors="replace").strip()


def works(*command: str | Path) -> bool:
    """Return whether a program succeeds."""
    try:
        run(*command, seconds=ANSWER)
    except LabError:
        return False
    return True


def require() -> None:
    """Check that this machine can run a lab.

    Raises:
        LabError: Something is missing; the message says what to do.
    """
    if os.geteuid() != 0:
        raise LabError("the lab starts engines and networks: call it as root", 2)
    missing = sorted({PACKAGES[name] for name in PACKAGES if shutil.which(name) is None})
    if missing:
        line = f"apt-get install {' '.join(missing)}"
        raise LabError(f"the lab needs {', '.join(missing)}: {line}", 2)


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait until a condition holds.

    Raises:
        LabError: It did not hold in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)


@contextmanager
def locked(settings: Settings) -> Iterator[None]:
    """Prevent two calls from building at the same time."""
    settings.home.mkdir(parents=True, exist_ok=True)
    with (settings.home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Engine:
    """The lab's own engine, beside those of this machine."""

    def __init__(self, settings: Settings) -> None:
        self.folder = settings.engine
        self.socket = self.folder / "docker.sock"
        self._child: subprocess.Popen[bytes] | None = None

    def command(self, *arguments: str | Path) -> list[str]:
        return ["docker", "-H", f"unix://{self.socket}", *map(str, arguments)]

    def docker(self, *arguments: str | Path, check: bool = True) -> str:
        return run(*self.command(*arguments), check=check)

    def up(self) -> bool:
        return self.socket.exists() and works(*self.command("version"))

    def start(self) -> None:
        """Start the engine unless it runs."""
        if self.up():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear()
        settings = self.folder / "daemon.json"
        settings.write_text("{}")
        # The lab's network is isolated: no address translation, no forwarding, and no rules that
        # would disturb a Docker of this machine.
        command = (
            *("dockerd", "--config-file", settings, "--data-root", self.folder / "data"),
            *("--exec-root", self.folder / "exec", "--pidfile", self.folder / "docker.pid"),
            *("-H", f"unix://{self.socket}", "--bridge", "none", "--userland-proxy=false"),
            *("--iptables=false", "--ip-forward=false", "--ip-masq=false", "--log-level", "warn"),
        )
        with (self.folder / "log").open("ab") as log:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            wait_for(self.up, "the engine that the nodes run in")
        except LabError as error:
            raise LabError(f"{error}; its log: {self.folder / 'log'}") from None

    def stop(self) -> None:
        """Stop the engine; what it has stored stays."""
        pid = self._running(self.folder / "docker.pid")
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            wait_for(lambda: self._ended(pid), "the engine to stop")
        # An engine that was killed once has left mounts behind.
        for path in reversed(mounts(self.folder)):
            run("umount", path)

    def _running(self, file: Path) -> int | None:
        """The process of a PID file, if it is this engine: PIDs are reused."""
        try:
            pid = int(file.read_text())
            own = os.fsencode(self.folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if own else None

    def _ended(self, pid: int) -> bool:
        if self._child is not None:
            self._child.poll()  # one's own child stays in the table until it was asked for
        return not Path(f"/proc/{pid}").exists()

    def _clear(self) -> None:
        """Remove the files that a killed engine has left."""
        left = self.folder / "exec" / "containerd" / "containerd.pid"
        pid = self._running(left)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not Path(f"/proc/{pid}").exists(), "a containerd to end")
        for path in (left, self.folder / "docker.pid", self.socket):
            path.unlink(missing_ok=True)


def mounts(folder: Path) -> list[Path]:
    """Return the mount points below a folder, in the order of mounting."""
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [Path(line.split()[4]) for line in table]
    return [point for point in points if point.is_relative_to(folder)]


def remove_bridge(bridge: str) -> None:
    """Remove a bridge and its ports: what is left of nodes whose engine was killed with them.

    Their network namespaces may live on without a process. With the addresses of the new nodes,
    they would refuse their connections.
    """
    place = Path("/sys/class/net", bridge)
    for port in place.glob("brif/*"):
        run("ip", "link", "delete", port.name, check=False)
    if place.exists():
        run("ip", "link", "delete", bridge, check=False)


def open_firewall(bridge: str) -> None:
    """Allow frames between the nodes if this machine's Docker filters bridges."""
    filtered = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if filtered.exists() and filtered.read_text().strip() == "1" and shutil.which("iptables"):
        rule = _rule(bridge)
        if not works("iptables", "-C", *rule):
            run("iptables", "-I", *rule)


def close_firewall(bridge: str) -> None:
    """Remove the rule."""
    if shutil.which("iptables"):
        run("iptables", "-D", *_rule(bridge), check=False)


def _rule(bridge: str) -> tuple[str, ...]:
    return ("FORWARD", "-i", bridge, "-o", bridge, "-j", "ACCEPT")
