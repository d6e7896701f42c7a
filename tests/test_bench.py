"""The benchmarks' commands work, in the smallest sizes; their results are not checked."""

import re
from pathlib import Path

import pytest

from tests.trainer.hosts import ROOT, hosts

pytestmark = pytest.mark.long
SMALLEST = ["--repeats", "1", "--epochs", "1", "--samples", "512"]


@pytest.mark.parametrize(
    ("which", "speeds", "ratios"),
    [("engine", 2, 2), ("loop", 2, 1), ("processes", 2, 1), ("balance", 5, 2)],
)
def test_a_comparison_prints_its_figures(
    which: str, speeds: int, ratios: int, tmp_path: Path
) -> None:
    with hosts(tmp_path, cold=True) as local:
        argv = ["-m", "tests.bench_training", which, *SMALLEST]
        task = local.start(which, argv, {"PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""}, cwd=ROOT)
        assert task.wait(300) == 0, task.text
    found = [
        float(figure.replace(",", ""))
        for pattern in (r"^  .+?  +([\d,]+) images/s", r"^  .+?  +([\d.]+) \([\d.]+ to [\d.]+\)")
        for figure in re.findall(pattern, task.text, re.MULTILINE)
    ]
    assert len(found) == speeds + ratios, task.text
    assert min(found) > 0


def test_servers_are_compared(tmp_path: Path) -> None:
    with hosts(tmp_path, cold=True) as local:
        argv = ["-m", "tests.bench_serve", "--seconds", "0.2", "--turns", "1", "--clients", "1,2"]
        task = local.start("serve", [*argv, "cnn"], {"PYTHONPATH": ROOT}, cwd=ROOT)
        assert task.wait() == 0, task.text
    assert len(re.findall(r"[\d,]+ requests/s  p50 +[\d.]+ ms", task.text)) == 6, task.text
    assert len(re.findall(r"ratio [\d.]+ \(", task.text)) == 2


def test_metrics_and_records_are_compared_with_neither(tmp_path: Path) -> None:
    with hosts(tmp_path, cold=True) as local:
        argv = ["-m", "tests.bench_metrics", "--repeats", "2", "--samples", "3200"]
        task = local.start("metrics", argv, {"PYTHONPATH": ROOT}, cwd=ROOT)
        assert task.wait() == 0, task.text
    assert len(re.findall(r"/ neither +[\d.]+ \(", task.text)) == 4, task.text
    assert re.search(r"a scrape +[\d.]+ ms", task.text)
