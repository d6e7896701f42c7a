"""The checks for GPUs, on the CPU: small sizes, so that the code does not rot without one."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import __main__ as program
from tests.gpu.check import CHECKS, Check, Figure, LackingError, Place
from tests.gpu.training import chosen, differing, out_of_memory, precisions
from tests.trainer.hosts import ROOT
from tests.warm import warm_python

NEEDS_MORE = {
    "a served resnet50",
    "decoding",
    "metrics of gpus",
    "out of memory",
    "parsers of nvidia smi",
    "pictures",
    "probes of this host",
    "resnet50",
}
"""Checks that need torchvision or a GPU."""
DEAR = {
    "a lost shard",
    "airbench",
    "compiling",
    "divided models",
    "regroup after silence",
    "texts",
}
"""Checks that take most of the time; on a CPU, tests/trainer/ has trainings like theirs."""


def run(folder: Path, *words: str) -> tuple[int, str]:
    """Run the program; return its exit status and its output."""
    python = warm_python().executable
    argv = [python, "-m", "tests.gpu", "--jobs", "2", "--out", str(folder), *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param({*CHECKS} - DEAR, id="cheap"),
        pytest.param(DEAR, id="dear", marks=pytest.mark.long),
    ],
)
def test_all_checks_pass_and_are_written_down(tmp_path: Path, chosen: set[str]) -> None:
    # The limits are for a GPU that does nothing else.
    code, said = run(tmp_path, "--seconds", "3600", "--patience", "10", *sorted(chosen))
    assert code == 0, said
    found = json.loads((tmp_path / "gpu.json").read_text())
    done = [each for each in found["checks"] if each["verdict"] != "not measured"]
    assert {each["name"] for each in done} >= chosen - NEEDS_MORE, said
    assert {each["verdict"] for each in done} == {"ok"}, said
    assert all(each["figures"] for each in done)
    assert found["machine"]["torch"]
    rows = (tmp_path / "gpu.md").read_text()
    assert all(f"| {each['name']} | {each['verdict']} |" in rows for each in found["checks"])


def test_the_output_of_nvidia_smi_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lab's stand-in, which has the fields and forms of the driver's."""
    (tmp_path / "table").write_text("0 GPU-a1 24576 7.5 TITAN RTX\n1 GPU-b2 32768 7.0 GV100\n")
    program, text = tmp_path / "nvidia-smi", (ROOT / "tests/lab/node/nvidia-smi").read_text()
    text = text.replace("/dev/nvidia-table", str(tmp_path / "table"))
    program.write_text(text.replace("[ -c /dev/nvidiactl ]", "true"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    code, said = run(tmp_path / "out", "machine")
    assert code == 0, said
    found = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert {each["verdict"] for each in found["checks"]} == {"ok"}, said
    assert len(found["checks"]) == 3


def test_a_check_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    code, said = run(tmp_path, "atention")
    assert code == 2
    assert "there is no atention; there are: machine, training" in said


def test_bad_checks_are_told_and_do_not_end_the_others(tmp_path: Path) -> None:
    fails = Check("no such check", "speed", precisions)
    lacks = Check("lacks", "speed", precisions, needs=("no_such_module",))
    hangs = Check("a cold start", "speed", precisions, seconds=0.2)
    found = program.Runner(tmp_path, 100).run_all([fails, lacks, hangs], 1)
    assert [each.verdict for each in found] == ["failed", "not measured", "failed"]
    assert "KeyError: 'no such check'" in found[0].reason
    assert found[1].reason == "no no_such_module"
    assert found[2].reason.endswith("not within 0 s")
    (late,) = program.Runner(tmp_path, 0).run_all([CHECKS["ceilings"]], 1)
    assert (late.verdict, late.reason) == ("not measured", "no time was left")


def test_a_figure_that_misses_its_aim_is_marked() -> None:
    slow = {"value": 1.2, "unit": "", "least": 1.3, "most": None}
    text = json.dumps({"verdict": "ok", "figures": {"ratio": slow}, "reason": ""})
    result = program.Result.parse(CHECKS["resnet50"], 1.0, text)
    assert result.verdict == "missed"
    assert result.row() == "| speed | resnet50 | missed | ratio 1.2 (aim ≥ 1.3) | 1 |"
    assert not Figure(2.0, most=2.0).missed
    assert Figure(float("nan"), least=0.0).missed


def test_weights_that_differ_after_a_resume_are_named() -> None:
    whole = {"first": b"1", "second": b"2", "third": b"3"}
    assert differing(whole, dict(whole)) == []
    assert differing(whole, {"first": b"1", "second": b"0"}) == ["second", "third"]


def test_the_type_that_auto_chooses_is_in_the_log() -> None:
    line = (
        "global batch 64 = 64 x 1 processes x 1, {}, exchange every_step, compression fp16, 9 steps"
    )
    assert chosen(line.format("bf16")) == "bf16"
    with pytest.raises(AssertionError, match="the log names no type"):
        chosen(line.format("auto"))


def test_without_numpy_the_checks_that_need_it_say_so() -> None:
    script = (
        "import sys; sys.modules.update(numpy=None, sklearn=None); from tests.gpu import __main__; "
        "print({name for name, each in __main__.CHECKS.items() if not each.lacking()})"
    )
    argv = [sys.executable, "-c", script]
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert ast.literal_eval(said.stdout) == {
        *("parsers of nvidia smi", "probes of this host", "metrics of gpus"),
        *("attention", "ceilings"),
    }


def test_a_cpu_does_not_measure_what_a_gpu_without_room_does(tmp_path: Path) -> None:
    with pytest.raises(LackingError, match="no GPU"):
        out_of_memory(Place(tmp_path, cuda=False))
