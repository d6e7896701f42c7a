"""The page that compares one GPU with three is run, with a small data set and few epochs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.text import Text

from docs.generate import reports
from tests.warm import programs_of_engine

pytest.importorskip("libtorrent")
SMALLER = {
    "epochs: 10,": "epochs: 1,",
    "batch_size: 256,": "batch_size: 32,",
    "pool/drawings\n": "pool/drawings --train 500 --test 100\n",
}


def test_the_page_leads_from_a_data_set_to_a_report_of_two_runs(tmp_path: Path) -> None:
    ran = reports.run_here(tmp_path, SMALLER, programs_of_engine(tmp_path / "bin"))
    printed = {command: Text.from_ansi(text).plain for command, text in ran.items()}
    assert "cifar10@1   1.84 MB       6   this machine   drawings" in printed["kit data ls"]
    plan = printed["kit plan"]
    assert "data        cifar10 on pc1, 1.84 MB" in plan
    (rows,) = (text for command, text in printed.items() if command == reports.TERMINAL)
    assert re.search(r"^ one +1 +1 .* 1\.00 × +100 % .* complete", rows, re.MULTILINE)
    assert re.search(r"^ three +3 +1 .* complete", rows, re.MULTILINE)
    assert "html" in printed["kit history"]  # The columns are narrow here.
    report = (tmp_path / "pool" / "report.html").read_text()
    for part in ("one and three disagree", "airplane", "three: validation"):
        assert part in report, part
