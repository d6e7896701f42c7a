"""The launcher and the trainer's imports on arm64, in an emulator: no test machine is an ARM.

`tests/arm64` fetches the emulator, Python and PyTorch; what they import takes minutes there.
"""

import subprocess

import pytest

from tests.sandbox import ROOT

PYTHON = ROOT / ".tools" / "arm64" / "python"
DEADLINE = 1800

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists(), reason="tests/arm64 has fetched no Python for arm64"),
]


def on_arm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PYTHON), *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )


def test_the_launcher_runs() -> None:
    """It says what it lacks, and reads the interfaces by getifaddrs of this architecture."""
    done = on_arm("trainer/launch.py")
    assert done.returncode == 2, done.stderr
    assert "KIT_JOB" in done.stdout + done.stderr
    done = on_arm(
        "-c",
        "import platform; from trainer.launcher.interfaces import interface_addresses as own; "
        "print(platform.machine(), own().get('127.0.0.1'))",
    )
    assert done.stdout == "aarch64 lo\n", done.stderr


def test_the_training_imports_and_computes() -> None:
    done = on_arm(
        "-c",
        "import platform, torch, trainer.train, trainer.core.gpt; "
        "x = torch.ones(4, 4, requires_grad=True); (x @ x).sum().backward(); "
        "print(platform.machine(), float(x.grad.sum()))",
    )
    assert done.stdout == "aarch64 128.0\n", done.stderr[-2000:]
