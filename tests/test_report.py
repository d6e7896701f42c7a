"""`kit report`, `kit top` and their page: from records of real trainings to a real browser."""

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from kit.report import times
from kit.report.archive import Archive, began
from kit.report.collect import joined, runs_of
from kit.report.curves import MOST, thinned
from kit.report.document import document
from kit.report.page import LARGEST, page
from kit.report.predictions import by_class, disagreement, predictions, weakest
from kit.report.record import Run
from kit.report.run_view import Origin
from kit.report.view import Inventory
from kit.runtime.record_files import RecordFile, from_folder
from kit.runtime.status import HostStatus, JobStatus, RankPace, State
from kit.top import board, smi
from kit.top.feeds import Feeds
from kit.workload.types import Kind
from tests import bench_report
from tests.trainer.browser import Page, browser
from tests.trainer.hosts import hosts, wait_until, write_job
from tests.trainer.test_trainer_record import alone

CONTRASTS = (Path(__file__).parent / "trainer" / "contrasts.js").read_text()
INVENTORY = Inventory("inventory.yaml", "cluster: lab # <script>alert(1)</script>\n", "12345678")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two runs: one process, and two hosts with three."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "three").mkdir()
    with hosts(folder) as local:
        task = local.start(
            "one", ["-m", "trainer.train"], alone(folder, write_job(folder, "one", epochs=4))
        )
        assert task.wait() == 0, task.text
    with hosts(folder / "three") as local:
        for task in local.pair(write_job(folder / "three", "three", epochs=4)):
            assert task.wait() == 0, task.text
    one = list(from_folder("n1", folder / "n1"))
    three = [file for host in ("pc1", "pc2") for file in from_folder(host, folder / "three" / host)]
    return [*runs_of("one", one), *runs_of("three", three)]


def made(runs: list[Run]) -> str:
    origins = [Origin("registry:5000/trainer@sha256:abc", "me@here", "12345678", "9") for _ in runs]
    about = {"cluster": "lab", "written": "today", "version": "1"}
    return page(runs, origins, INVENTORY, **about)


def test_the_time_of_a_run_adds_up(runs: list[Run]) -> None:
    for run in runs:
        spent = times.division(run)
        assert sum(spent.values()) == pytest.approx(run.ended - run.began, rel=0.02)
        assert spent["compute"] > 0
        assert spent["start"] > 0
        assert spent["lost"] == spent["restart"] == 0


def test_runs_are_compared_with_the_smallest(runs: list[Run]) -> None:
    one, three = times.compare(runs)
    assert (one.speedup, one.efficiency) == (1, 1)
    ratio = times.training_seconds(runs[0]) / times.training_seconds(runs[1])
    assert three.speedup == pytest.approx(ratio)
    assert three.efficiency == pytest.approx(ratio / 3)
    assert (three.world_size, three.hosts, three.epochs) == (3, 2, 4)
    assert one.steps_per_epoch == 45
    assert three.steps_per_epoch == 15
    # Another number of epochs is not the same work.
    shorter = replace(runs[1], attempts=(replace(runs[1].attempts[0], epochs=()),))
    assert times.compare([runs[0], shorter])[1].speedup is None


def test_texts_are_compared_by_tokens(runs: list[Run]) -> None:
    [attempt] = runs[0].attempts
    epochs = tuple(
        replace(each, tokens_per_second=64 * (each.images_per_second or 0), mfu=0.345)
        for each in attempt.epochs
    )
    text = replace(runs[0], attempts=(replace(attempt, epochs=epochs),))
    found = times.compare([text, runs[1]])
    assert found[0].tokens_per_second == pytest.approx(64 * (found[0].images_per_second or 0))
    assert found[1].tokens_per_second is None
    assert [times.speed_unit(each) for each in (found, found[:1], found[1:])] == [
        "samples/s", "tokens/s", "images/s",
    ]  # fmt: skip
    shown = made([text])
    assert "tokens/s" in shown
    assert "34.5%" in shown
    assert "images/s" not in shown
    assert "samples/s" in made([text, runs[1]])


def test_steps_that_were_repeated_are_lost(runs: list[Run]) -> None:
    [attempt] = runs[0].attempts
    attempt = replace(attempt, events=())  # It was interrupted.
    again = replace(attempt, time=attempt.last + 5, step=90, ranks=(), epochs=())
    run = replace(runs[0], attempts=(replace(attempt, kept=90), again))
    spent = times.division(run)
    late = [window for window in attempt.ranks[0].windows if window.step > 90]
    assert spent["lost"] == pytest.approx(sum(window.seconds for window in late))
    assert spent["restart"] == pytest.approx(5)
    assert max(epoch.step for epoch in run.epochs) <= 90


def test_the_time_between_an_end_and_the_next_deploy_counts_nowhere(runs: list[Run]) -> None:
    [attempt] = runs[0].attempts
    setup = max(rank.setup for rank in attempt.ranks)
    later = replace(attempt, time=attempt.last + 500 + setup, epochs=(), events=())
    later = replace(later, ranks=tuple(replace(rank, windows=()) for rank in attempt.ranks))
    run = replace(runs[0], attempts=(attempt, later))
    spent = times.division(run)
    assert spent["restart"] == 0
    # Seconds since 1970 are exact to 2.4e-7.
    assert spent["start"] == pytest.approx(times.division(runs[0])["start"] + setup, abs=1e-5)
    assert run.idle == pytest.approx(500)
    assert sum(spent.values()) == pytest.approx(run.seconds) == run.ended - run.began - run.idle
    assert times.compare([run])[0].seconds == pytest.approx(runs[0].seconds + setup)


def test_processes_that_begin_while_others_train_count_from_their_end(runs: list[Run]) -> None:
    [attempt] = runs[0].attempts
    ranks = tuple(replace(rank, setup=30, windows=()) for rank in attempt.ranks)
    later = replace(attempt, time=attempt.last + 2, epochs=(), events=(), ranks=ranks)
    run = replace(runs[0], attempts=(attempt, later))
    spent = times.division(run)
    assert spent["start"] == pytest.approx(times.division(runs[0])["start"] + 2, abs=1e-5)
    assert sum(spent.values()) == pytest.approx(run.seconds)


def test_a_slow_rank_is_named(runs: list[Run]) -> None:
    [attempt] = runs[1].attempts
    slow = attempt.ranks[1]
    windows = tuple(replace(each, compute=each.compute * 4) for each in slow.windows)
    ranks = (attempt.ranks[0], replace(slow, windows=windows), attempt.ranks[2])
    found = times.paces(replace(runs[1], attempts=(replace(attempt, ranks=ranks),)))
    assert [pace.slow for pace in found] == [False, True, False]


def test_runs_disagree_where_one_of_them_is_wrong(runs: list[Run]) -> None:
    found = disagreement(runs[0], runs[1], 10)
    one, two = predictions(runs[0]), predictions(runs[1])
    assert found
    assert one
    assert two
    assert found.only_first - found.only_second == one.correct - two.correct
    assert all(a != b for shown in found.shown for a, b in [shown.predicted])
    assert disagreement(runs[0], replace(runs[1], evaluation=None), 10) is None


def test_damaged_records_are_passed_over(runs: list[Run]) -> None:
    for damage in ({}, {"truth": "%%%"}, {"truth": "AAA=", "predicted": "", "every": 1}):
        assert predictions(replace(runs[0], evaluation=damage)) is None
    assert (
        runs_of("x", [RecordFile("h", "r", "rank0.jsonl", b'{"record": "begin"\n\xff\nnull\n')])
        == []
    )


def test_each_class_has_its_accuracy(runs: list[Run]) -> None:
    for run in runs:
        figures = by_class(run)
        assert [each.name for each in figures] == [str(digit) for digit in range(10)]
        assert sum(each.samples for each in figures) == 360
        right = sum(each.correct for each in figures)
        assert right / 360 == pytest.approx(run.epochs[-1].accuracy, abs=1e-5)
        found = predictions(run)
        assert found
        for number, each in enumerate(figures):
            own = [n for n, truth in enumerate(found.truth) if truth == number]
            assert len(own) == each.samples
            assert sum(found.predicted[n] == number for n in own) == each.correct
        lowest = weakest(figures, 3)
        assert len(lowest) == 3
        assert all(each.accuracy >= lowest[-1].accuracy for each in figures if each not in lowest)  # type: ignore[operator]
    written = document(runs, [Origin()] * 2)["runs"][1]
    assert written["classes"][3]["name"] == "3"
    assert written["epochs_done"][-1]["metrics"]["top5_accuracy"] > 0.9
    text = made(runs)
    assert "Accuracy of each class" in text
    assert "Classes: 10; all, the lowest first." in text
    for damage in ({}, {"samples": 3}, {"samples": [1], "correct": ["x"]}, {"samples": [1]}):
        assert by_class(replace(runs[0], by_class=damage)) == ()
        made([replace(runs[0], by_class=damage)])


def test_a_thinned_curve_keeps_its_peaks() -> None:
    points = [(float(x), 0.0) for x in range(100_000)]
    points[54_321] = (54_321.0, 9.0)
    found = thinned(points)
    assert len(found) <= 2 * (MOST + 1)
    assert (54_321.0, 9.0) in found
    assert found[0] == points[0]
    assert list(found) == sorted(found)


def test_a_record_grows_with_the_logarithm_of_its_steps(tmp_path: Path) -> None:
    sizes = []
    for steps in (2_000, 20_000):
        bench_report.record(tmp_path / str(steps), steps, 0, 1)
        [file] = from_folder("n0", tmp_path / str(steps))
        [run] = runs_of("long", [file])
        assert sum(window.steps for window in run.attempts[0].ranks[0].windows) == steps
        sizes.append(len(file.content))
    assert sizes[1] < 2.5 * sizes[0]


def test_damaged_copies_are_passed_over(tmp_path: Path) -> None:
    archive, folder = Archive(tmp_path), tmp_path / "digits"
    archive.keep("digits", [RecordFile("a", "r", "rank0.jsonl", b'{"record": "begin"}' * 9)])
    (whole,) = folder.iterdir()
    for at in range(10, len(whole.read_bytes())):
        content = bytearray(whole.read_bytes())
        content[at] ^= 0xFF
        (folder / f"damaged{at}.json.gz").write_bytes(content)
    for name, value in {
        "lists": [[["a"], {}, "YQ=="]],
        "none": None,
        "words": [["a", "b"]],
    }.items():
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(value).encode()))
    assert {each.run for each in archive.read("digits")} == {"r"}
    (folder / "r.report").write_bytes(b"\0\xff")
    assert archive.report_of("digits", "r") is None
    assert began("20261399-250000-x") == 0.0


def test_the_archive_keeps_what_the_hosts_lose(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "runs")
    old, new = RecordFile("h", "a", "rank0.jsonl", b"1"), RecordFile("h", "b", "rank0.jsonl", b"2")
    archive.keep("digits", [old])
    archive.keep("digits", [new])
    assert archive.jobs() == ["digits"]
    assert joined([replace(new, content=b"3")], archive.read("digits")) == [
        old,
        replace(new, content=b"3"),
    ]
    report = tmp_path / "report.html"
    report.write_text("")
    archive.note_report("digits", "a", report)
    assert archive.report_of("digits", "a") == report
    report.unlink()
    assert archive.report_of("digits", "a") is None


def test_json_has_the_same_figures(runs: list[Run]) -> None:
    found = json.loads(json.dumps(document(runs, [Origin(), Origin()])))
    assert [run["world_size"] for run in found["runs"]] == [1, 3]
    assert [len(run["ranks"]) for run in found["runs"]] == [1, 3]
    [pair] = found["disagreements"]
    assert pair["samples"] == 360


# -------- The page


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as result:
        yield result


@pytest.fixture(scope="module")
def file(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(made(runs), encoding="utf-8")
    return path


def visit(tab: Page, file: Path, width: int = 1200, scheme: str = "light") -> None:
    tab.events.clear()
    tab.show(width, 900, scheme)
    tab.open(file.as_uri())
    tab.until("document.readyState === 'complete' && !!document.querySelector('#details')")


def test_the_page_loads_nothing_and_fits(tab: Page, file: Path) -> None:
    visit(tab, file)
    assert tab.complaints() == []
    assert {url for url in tab.requested() if not url.startswith("data:")} == {file.as_uri()}
    assert file.stat().st_size <= LARGEST
    assert "<script" not in file.read_text()
    # Texts of the files are texts.
    assert "<script>alert(1)</script>" in tab.run("document.querySelector('#details').textContent")


def test_the_axis_is_chosen_by_keyboard(tab: Page, file: Path) -> None:
    visit(tab, file)
    shown = (
        "[...document.querySelectorAll('.by')].filter(each => each.checkVisibility())"
        ".map(each => each.className).join()"
    )
    assert tab.run(shown) == "by by-epochs"
    tab.run("document.querySelector('#x-epochs').focus()")
    tab.key("ArrowRight", 39)
    assert tab.run(shown) == "by by-steps"
    tab.key("ArrowRight", 39)
    assert tab.run(shown) == "by by-seconds"


def test_charts_and_pictures_are_described(tab: Page, file: Path) -> None:
    visit(tab, file)
    charts = tab.run(
        "[...document.querySelectorAll('svg:not([aria-hidden])')]"
        ".map(each => [each.getAttribute('role'), each.getAttribute('aria-label')])"
    )
    assert len(charts) >= 10
    assert all(role == "img" and label for role, label in charts)
    alts = tab.run("[...document.images].map(each => each.alt)")
    assert alts
    assert all(re.fullmatch(r"Test image \d+, class \w+", alt) for alt in alts)
    assert tab.run("[...document.images].every(each => each.naturalWidth > 0)")
    levels = tab.run("[...document.querySelectorAll('h1,h2,h3')].map(each => +each.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert tab.run("[...document.querySelectorAll('table')].every(each => each.caption)")
    ids = tab.run("[...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(ids) == len(set(ids))
    links = tab.run("[...document.links].map(each => each.hash.slice(1))")
    assert set(links) <= set(ids)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(tab: Page, file: Path, scheme: str) -> None:
    visit(tab, file, scheme=scheme)
    texts = [each for each in tab.run(CONTRASTS) if each["kind"] == "text"]
    assert len(texts) > 100
    assert [each for each in texts if each["contrast"] < 4.5] == []


def test_a_narrow_window_scrolls_only_downwards(tab: Page, file: Path) -> None:
    visit(tab, file, width=375)
    assert tab.run("document.documentElement.scrollWidth") <= 375


def test_it_can_be_printed(tab: Page, file: Path) -> None:
    visit(tab, file)
    tab.send("Emulation.setEmulatedMedia", media="print")
    assert not tab.run("document.querySelector('fieldset').checkVisibility()")
    assert tab.run("document.querySelector('.by-epochs svg').checkVisibility()")
    assert tab.send("Page.printToPDF")["data"].startswith("JVBERi")
    tab.send("Emulation.setEmulatedMedia", media="")


def test_pictures_are_left_out_until_the_page_fits(runs: list[Run]) -> None:
    evaluation = dict(runs[0].evaluation or {})
    evaluation["pictures"] = dict.fromkeys(evaluation["pictures"], "A" * 40_000)
    heavy = [replace(run, evaluation=evaluation) for run in runs]
    assert 2 * 40_000 < len(made(heavy).encode()) <= LARGEST


# -------- kit top


def status(paces: tuple[RankPace, ...]) -> JobStatus:
    parts = (
        HostStatus("n1", 1, State.RUNNING, None, ("GPU-a",), (0,), "", ("GPU-a",)),
        HostStatus(
            "n2", 2, State.RUNNING, None, ("GPU-b", "GPU-c"), (1, 2), "", ("GPU-b", "GPU-c")
        ),
    )
    return JobStatus(
        "digits", Kind.JOB, State.RUNNING, "", 0.0, None, parts, None, None, paces=paces
    )


def test_gpus_are_those_of_their_ranks_and_the_slow_one_is_marked() -> None:
    paces = tuple(
        RankPace(rank, host, 0.0, 9, 0.05, work, 0.01)
        for rank, host, work in ((0, "n1", 0.01), (1, "n2", 0.04), (2, "n2", 0.011))
    )
    lines = "0, GPU-a, TITAN RTX, 97, 1024, 24576, 80, 270.12, 280.00"
    gpus = {
        "n1": [smi.parse(lines)],
        "n2": [smi.parse(lines.replace("0, GPU-a", f"{n}, GPU-{x}")) for n, x in enumerate("bcd")],
    }
    known = {host: [gpu for gpu in each if gpu] for host, each in gpus.items()}
    found = board.rows(known, [status(paces)], ["n1", "n2"])
    assert [
        (row.host, row.gpu and row.gpu.uuid, row.holder, row.rank, row.slow) for row in found
    ] == [
        ("n1", "GPU-a", "digits", 0, False),
        ("n2", "GPU-b", "digits", 1, True),
        ("n2", "GPU-c", "digits", 2, False),
        ("n2", "GPU-d", "", None, False),
    ]
    alone = board.rows({}, [status(paces)], ["n1", "n2"])
    assert [(row.host, row.rank, row.gpu) for row in alone] == [
        ("n1", 0, None),
        ("n2", 1, None),
        ("n2", 2, None),
    ]


def test_values_that_a_gpu_lacks_are_unknown() -> None:
    gpu = smi.parse("1, GPU-a, Quadro K620, 5, 100, 2000, 50, [N/A], [Not Supported]")
    assert gpu is not None
    assert (gpu.power, gpu.limit, gpu.utilization, gpu.used) == (None, None, 0.05, 100 * 2**20)
    assert smi.parse("Failed to initialize NVML: Unknown Error") is None


def test_a_feed_is_read_until_its_connection_is_lost() -> None:
    line = "0, GPU-a, TITAN RTX, 97, 1024, 24576, 80, 270.12, 280.00"
    script = f"echo '{line}'; sleep 0.2; echo '{line.replace('97', '3')}'; exec sleep 1000"
    gone = "echo 'ssh: connect to host n2: No route to host'; exit 255"
    commands = {
        "n1": ["sh", "-c", f"exec 2>&1; {script}"],
        "n2": ["sh", "-c", gone],
        "n3": ["sh", "-c", "exec no-such-nvidia-smi --loop=2"],
    }
    feeds = Feeds(commands, loops=True)
    try:
        feeds.wait()
        wait_until(
            lambda: [gpu.utilization for gpu in feeds.feeds["n1"].gpus.values()] == [0.03],
            "the second line",
        )
        assert feeds.feeds["n2"].message == "ssh: connect to host n2: No route to host"
        assert feeds.feeds["n2"].gpus == {}
        assert feeds.feeds["n3"].message == "has no NVIDIA driver"
    finally:
        feeds.close()
    lost = "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error"
    once = Feeds({"n1": ["sh", "-c", f"echo '{lost}'; echo '{line}'; exit 15"]}, loops=False)
    once.wait()
    assert (len(once.feeds["n1"].gpus), once.feeds["n1"].message) == (1, lost)
    other = line.replace("0, GPU-a", "1, GPU-b")
    script = f"echo '{line}'; echo '{other}'; echo '{lost}'; echo '{line}'"
    script += f"; echo '{line.replace('97', '3')}'; exec sleep 9"
    falls = Feeds({"n1": ["sh", "-c", script]}, loops=True)
    try:
        wait_until(
            lambda: [each.utilization for each in falls.feeds["n1"].gpus.values()] == [0.03],
            "the third round",
        )
    finally:
        falls.close()
    once = Feeds({"n1": ["sh", "-c", f"echo '{line}'"]}, loops=False)
    once.wait()
    assert [gpu.model for gpu in once.feeds["n1"].gpus.values()] == ["TITAN RTX"]
    assert once.feeds["n1"].message == ""
