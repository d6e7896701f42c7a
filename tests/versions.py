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
FOLDERS = ("tests", "tests/queue", "tests/runtime", "tests/targets")
OTHERS = frozenset(
    {
        # They need PyTorch.
        *("test_contract.py", "test_division.py", "test_doctor_agent.py", "test_gpu_checks.py"),
        *("test_measuring.py", "test_report.py", "test_warm.py", "targets/test_data.py"),
        *("targets/test_local.py", "targets/test_serving.py", "test_ipv6.py"),
        # Tools of the locks: schemas of Kubernetes, dashboards, the build of the wheel, pages.
        *("targets/test_kubernetes.py", "targets/test_kubernetes_deploy.py", "test_monitoring.py"),
        *("test_package.py", "test_docs.py", "test_comparison.py"),
    }
)
"""The test files that do not run with kit and the extras alone."""
TRAIN = (
    "test_init.py::test_a_host_with_ipv6_alone_becomes_a_project_that_renders",
    "test_notify.py::test_a_missing_secret_is_named_before_anything_is_deployed",
)
"""Tests of the other files that deploy to this machine, which needs PyTorch."""
EXTRAS = ("data", "data-sources", "digits", "folder", "notify", "serve", "tensorboard", "text")
"""All but PyTorch itself, of which a version has gigabytes."""
BRIEF = ("test_yamlfile.py", "test_malformed.py", "test_templates.py", "test_cli.py")
MINUTE = 60.0
NOT_INSTALLED = 69
"""The exit status of the brief part without the libraries; pytest has others."""


def tests() -> tuple[str, ...]:
    """Return the test files that need neither PyTorch nor other programs."""
    found = (file for folder in FOLDERS for file in (ROOT / folder).glob("test_*.py"))
    names = sorted(str(file.relative_to(ROOT / "tests")) for file in found)
    return tuple(name for name in names if name not in OTHERS)


def install(uv: str, resolution: str, extras: tuple[str, ...] = ()) -> Path:
    """Install kit and extras with such versions, and the test tools; return the Python."""
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
            *(f"--extra={extra}" for extra in extras),
        ],
        cwd=ROOT,
        check=True,
    )
    options = ("--quiet", "--python", python, "--constraint", pins)
    kit = f".[{','.join(extras)}]" if extras else "."
    subprocess.run(
        [uv, "pip", "install", *options, "--editable", kit, "--group", "test"], cwd=ROOT, check=True
    )
    return python


def run(python: Path, tests: tuple[str, ...]) -> int:
    """Run tests; return pytest's exit status."""
    options = [
        *("-q", "-n", "2", "--dist", "loadscope", "-p", "no:cacheprovider"),
        *("-m", "not lab and not long and not kubernetes"),
        *(f"--deselect=tests/{each}" for each in TRAIN),
    ]
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
        python = install(uv, resolution, EXTRAS)
        print(f"{resolution}: {(FOLDER / f'{resolution}.txt').read_text().split()}", flush=True)
        failed |= run(python, tests())
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
