"""The processor time that `make test` prints has all that its command has started."""

import re
import subprocess
import sys

from tests.sandbox import ROOT

BURN = "import time\nwhile time.process_time() < 0.5: pass"
PARENT = f"""
import subprocess, sys
from tests.budget import Children
children = Children()
# A shell that ends at once leaves a process in a session of its own, as an engine does.
shell = subprocess.Popen(["sh", "-c", 'setsid "$0" -c "$1" &', sys.executable, {BURN!r}])
assert children.wait(shell.pid) == 0
assert children.seconds < 0.4
assert children.leftover() == []
print(children.seconds)
"""


def test_the_time_of_a_process_that_outlives_its_parent_is_counted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.5


def test_the_status_of_the_command_is_its_own() -> None:
    command = [sys.executable, "-m", "tests.budget", "--name", "x", "--minutes", "1", "--"]
    ends = subprocess.run(
        [*command, "sh", "-c", "exit 3"], cwd=ROOT, capture_output=True, text=True
    )
    assert ends.returncode == 3
    assert re.match(r"x: 0\.0 of 1 CPU-minutes, \d+\.\d minutes", ends.stdout)
    killed = subprocess.run([*command, "sh", "-c", "kill -9 $$"], cwd=ROOT, capture_output=True)
    assert killed.returncode == 128 + 9
