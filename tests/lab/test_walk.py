"""Runs the page about the lab line by line, as a newcomer would."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.conftest import Docker
from tests.lab.client import ready, right_answers
from tests.lab.conftest import CLUSTER, NAME, Lab, wait_for
from tests.sandbox import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.long]
PAGE = (ROOT / "docs/start/lab.md").read_text(encoding="utf-8")


def test_the_page_leads_to_a_model_and_a_split(lab: Lab, tmp_path: Path, docker: Docker) -> None:
    setup, train, split = (
        textwrap.dedent(block) for block in re.findall(r"(?:^    .+\n)+", PAGE, re.MULTILINE)
    )
    (back,) = re.findall(r"`(kit split --infer 0 [^`]+)`", PAGE)
    path = f"{Path(docker.program).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, **docker.env, **NAME, "PATH": path}

    def run(*lines: str) -> str:
        """Run lines in a shell that begins in the folder of the first ones."""
        script = "\n".join(("set -e", setup, *lines)).replace("../play", str(tmp_path / "play"))
        done = subprocess.run(
            # Its output is shown when it hangs, too.
            ["timeout", "--kill-after=5", "600", "bash", "-c", script],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    there = f"cd {tmp_path / 'play'}"
    # Other tests' cluster has a network with the same addresses.
    network = f" {CLUSTER}-training "
    lab.call("docker", "n1", "stack", "rm", f"{CLUSTER}-platform")
    wait_for(lambda: network not in lab.docker("n1", "network", "ls"), "the end of its network")
    try:
        trained = run(train)
        assert re.search(r"digits completed after \d+ s: test accuracy 9[7-9]", trained)
        told = run(there, split)
        url = f"http://{lab.settings.address('n2')}:8080"
        assert f"serve-digits: answers at {url}" in told
        wait_for(lambda: ready(url), "the page")
        assert right_answers(url) > 0.95
        assert "serve-digits: is idle: it has no GPU" in run(there, back)
    finally:
        run(there, "kit stop --all", "kit swarm down --yes")
