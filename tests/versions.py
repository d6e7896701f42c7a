"""Runs the pure tests and those of the command line with other versions than the locked ones.

python -m tests.versions UV            the lowest, then the newest that pyproject.toml admits
python -m tests.versions UV --tell     the newest alone, for at most a minute: a difference is
                                       told, and nothing fails
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".tools" / "versions"
TESTS = (
    *("runtime", "targets/test_compose.py", "targets/test_docker.py", "targets/test_swarm.py"),
    *("targets/test_local_decide.py", "targets/test_moves.py", "test_discover.py"),
    *("test_doctor.py", "test_hostile.py", "test_images.py", "test_malformed.py", "test_plan.py"),
    *("test_prepare.py", "test_render.py", "test_servers.py", "test_split.py", "test_templates.py"),
    *("test_tree.py", "test_values.py", "test_yamlfile.py", "test_cli.py"),
)
"""Those that need neither PyTorch nor other programs."""
BRIEF = ("test_yamlfile.py", "test_malformed.py", "test_templates.py", "test_cli.py")
MINUTE = 60.0
NOT_INSTALLED = 69
"""The exit status of the brief part without the libraries; pytest has others."""


def install(uv: str, resolution: str) -> Path:
    """Install kit with such versions, and the test tools; return the Python."""
    folder = FOLDER / resolution
    python = folder / "bin" / "python"
    subprocess.run(
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True
    )
    pins = FOLDER / f"{resolution}.txt"
    subprocess.run(
        [
            *(uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--upgrade"),
            *("--resolution", resolution, "--python", python, "pyproject.toml", "-o", pins),
        ],
        cwd=ROOT,
        check=True,
    )
    options = ("--quiet", "--python", python, "--constraint", pins)
    subprocess.run(
        [uv, "pip", "install", *options, "--editable", ".", "--group", "test"], cwd=ROOT, check=True
    )
    return python


def run(python: Path, tests: tuple[str, ...]) -> int:
    """Run tests; return pytest's exit status."""
    options = ("-q", "-n", "2", "--dist", "loadscope", "-p", "no:cacheprovider")
    files = [f"tests/{each}" for each in tests]
    return subprocess.run(
        [python, "-m", "pytest", *options, *files], cwd=ROOT, check=False
    ).returncode


def tell(uv: str) -> None:
    """Run a brief part with the newest versions; never fail."""
    command = [sys.executable, "-m", "tests.versions", uv, "--brief"]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    found = "DIFFERENT, see above; `make test-versions` has all"
    try:
        status = process.wait(MINUTE)
        known = {0: "nothing differs", NOT_INSTALLED: "not known: they could not be installed"}
        found = known.get(status, found)
    except subprocess.TimeoutExpired:
        found = "not known within a minute"
    finally:
        if process.poll() is None:  # With all that it has started, such as pytest's workers.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    print(f"tests with the newest versions of kit's libraries: {found}")


def main() -> int:
    """Return the exit status: 1 if a test has failed."""
    uv, *options = sys.argv[1:]
    if options == ["--tell"]:
        tell(uv)
        return 0
    if options == ["--brief"]:
        try:
            python = install(uv, "highest")
        except subprocess.CalledProcessError as error:
            print(error, file=sys.stderr)
            return NOT_INSTALLED
        return run(python, BRIEF)
    failed = 0
    for resolution in ("lowest-direct", "highest"):
        python = install(uv, resolution)
        print(f"{resolution}: {(FOLDER / f'{resolution}.txt').read_text().split()}", flush=True)
        failed |= run(python, TESTS)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
