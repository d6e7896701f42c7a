"""The warm Python behaves as the one that it stands for."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.trainer.hosts import DEADLINE, descendants, wait_until
from tests.warm import warm_python

PROGRAM = """
import os, sys
print(sys.argv, os.getcwd(), os.environ["SAID"], "torch" in sys.modules, __name__)
print("last words", file=sys.stderr)
sys.exit(3)
"""
DEAF = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(600)
"""


def run(*arguments: str, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [warm_python().executable, *arguments]
    environ = {**os.environ, "SAID": "täglich"}
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


@contextmanager
def started(*arguments: str) -> "Iterator[subprocess.Popen[str]]":
    command = [warm_python().executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
            process.wait(DEADLINE)
        finally:
            for pid in (*descendants(process.pid), process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("way", ["-c", "-m", "file"])
def test_a_program_finds_what_it_was_given(tmp_path: Path, way: str) -> None:
    (tmp_path / "said.py").write_text(PROGRAM)
    arguments = {"-c": ["-c", PROGRAM], "-m": ["-m", "said"], "file": ["said.py"]}[way]
    ended = run("-u", *arguments, "--a", "b", folder=tmp_path)
    name = {"-c": "-c", "-m": str(tmp_path / "said.py"), "file": "said.py"}[way]
    assert ended.stdout == f"{[name, '--a', 'b']} {tmp_path} täglich True __main__\n"
    assert (ended.stderr, ended.returncode) == ("last words\n", 3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_a_signal_is_how_the_program_ended(number: signal.Signals) -> None:
    ended = run("-c", f"import os; os.kill(os.getpid(), {number.value})")
    assert ended.returncode == -number


@pytest.mark.parametrize(
    ("start", "processes"),
    [
        ("subprocess.run([sys.executable, '-c', program])", 3),  # Forked, a client, forked again.
        ("os.execv(sys.executable, [sys.executable, '-c', program])", 2),
    ],
)
def test_what_it_starts_is_warm_and_below_it(start: str, processes: int) -> None:
    program = "import sys, time; print('torch' in sys.modules, flush=True); time.sleep(600)"
    code = f"import os, subprocess, sys; program = {program!r}; {start}"
    with started("-c", code) as process:
        assert process.stdout
        assert process.stdout.readline() == "True\n"
        assert len(descendants(process.pid)) == processes
        process.terminate()
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_go_on_and_nothing_outlives_its_client(number: signal.Signals) -> None:
    with started("-c", DEAF) as process:
        assert process.stdout
        program = int(process.stdout.readline())
        process.send_signal(number)
        if number == signal.SIGTERM:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            os.kill(program, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{program}").exists(), "an end of the program")


def test_it_ends_with_the_tests_that_use_it() -> None:
    program = (
        "import os, subprocess\nfrom tests.warm import warm_python\n"
        f"p = subprocess.Popen([warm_python().executable, '-c', {DEAF!r}], stdout=-1)\n"
        "print(p.stdout.readline().decode(), end='', flush=True); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        found = int(process.stdout.readline())
    wait_until(lambda: not Path(f"/proc/{found}").exists(), "an end of the program")


def test_proc_shows_the_variables_of_the_program_alone() -> None:
    """So kit recognises its processes. The kernels of CI and of developers allow it."""
    assert warm_python().shows_variables
