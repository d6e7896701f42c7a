"""Run a host's prepare.sh from the rendered tree, over SSH."""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.errors import InputError, KitError
from kit.hosts import ssh
from kit.model import Host
from kit.prepare.report import Report, read_report
from kit.values import Say

PATIENCE = 1800.0
"""The most seconds of a script: package managers wait for slow mirrors."""
NEEDS_PASSWORD, WRONG_PASSWORD = 77, 78
"""Exit statuses of the script below, which prepare.sh does not use."""
PACKAGES = (".deb", ".rpm")
TOOLKIT = "toolkit"
"""The folder of the packages on the host, in the temporary folder."""

# The first line of the input is sudo's password, or empty; a tar follows. With `-k` sudo reads the
# password also if it remembers an older one.
SCRIPT = """\
exec 2>&1
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT || exit
IFS= read -r password
tar -xf - -C "$folder" || exit
script=$folder/hosts/{host}/prepare.sh
if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null && command -v sudo >/dev/null; then
    [ -n "$password" ] || exit {needs}
    printf '%s\\n' "$password" | sudo -k -S -p '' true 2>/dev/null || exit {wrong}
    printf '%s\\n' "$password" | sudo -k -S -p '' sh "$script" {options}
else
    sh "$script" {options} </dev/null
fi
"""


class NeedsPasswordError(KitError):
    """sudo needs a password on this host."""

    def __init__(self, host: Host) -> None:
        super().__init__(
            f"{host.name}: sudo asks for a password",
            f"run this on a terminal, or as root there: sh hosts/{host.name}/prepare.sh",
        )


@dataclass(frozen=True, slots=True)
class Task:
    """The files of the rendered tree, and the options of the scripts.

    `toolkit` is the address of a mirror, or "" if `packages` are set or NVIDIA's repository is
    used.
    """

    files: Mapping[str, str]
    toolkit: str = ""
    packages: tuple[Path, ...] = ()
    install_docker: bool = False


def run(task: Task, host: Host, options: Sequence[str], password: str, say: Say) -> Report:
    """Run the script of a host; pass each line of its output to `say`.

    Raises:
        NeedsPasswordError: sudo needs a password, and `password` is "".
        KitError: The host cannot be reached, or sudo rejects the password.
    """
    words = [shlex.quote(option) for option in options]
    if task.install_docker:
        words.append("--install-docker")
    if task.packages:
        words += ["--toolkit", f'"$folder/{TOOLKIT}"']
    elif task.toolkit:
        words += ["--toolkit", shlex.quote(task.toolkit)]
    script = SCRIPT.format(
        host=host.name, options=" ".join(words), needs=NEEDS_PASSWORD, wrong=WRONG_PASSWORD
    )
    lines: list[str] = []

    def heard(line: str) -> None:
        lines.append(line)
        say(line)

    content = f"{password}\n".encode() + _archive(task, host)
    status = ssh.stream(host, script, content, heard, PATIENCE)
    if status == NEEDS_PASSWORD:
        raise NeedsPasswordError(host)
    if status == WRONG_PASSWORD:
        raise KitError(f"{host.name}: sudo does not accept the password", "try again")
    report = read_report(host, status, lines)
    if not report.explained:
        last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
        raise KitError(f"{host.name}: prepare.sh ended with status {status}: {last.strip()}")
    return report


def packages_in(folder: Path) -> tuple[Path, ...]:
    """Return the packages in a folder.

    Raises:
        InputError: There is no such folder, or it has no packages.
    """
    packages = tuple(sorted(path for path in folder.glob("*") if path.suffix in PACKAGES))
    if not packages:
        raise InputError(
            f"--toolkit: {folder} has no {' or '.join(PACKAGES)} files",
            "name a folder of packages, or the address of a mirror",
        )
    return packages


def _archive(task: Task, host: Host) -> bytes:
    """Return a tar of what the host's script needs: the common files and its own."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in task.files.items():
            if "/" not in name or name.startswith(f"hosts/{host.name}/"):
                content = text.encode()
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        for path in task.packages:
            tar.add(path, f"{TOOLKIT}/{path.name}")
    return packed.getvalue()
