"""`kit bench` and what `kit plan` predicts: the pure parts, and the programs on this machine."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.bench import file
from kit.bench.container import command
from kit.bench.findings import findings
from kit.bench.measure import measure, start
from kit.bench.rounds import group_sizes, rounds
from kit.bench.steps import from_run
from kit.commands.bench import nccl_variables
from kit.errors import InputError
from kit.hosts.programs import Program, RefusedError
from kit.measurements import GpuRates, HostRates, Link, Measurements, Reduction, StepTime
from kit.model import Gpu, Host, Network, Use
from kit.plan.predict import Prediction, predict
from kit.plan.traffic import BUCKET, FIRST_BUCKET, last_bucket
from kit.plan.types import MountPoint
from kit.plan.work import JobPlan
from kit.rendered import program_text
from kit.runtime.status import LogLine, State
from tests.sandbox import Project, kit_process
from trainer.contract import event_lines, events
from trainer.contract.gpus import sheet_of

RESNET = """\
image: registry.lab:5000/trainer:0.2.0
train: {dataset: cifar10, model: resnet18, epochs: 10, batch_size: 64}
"""
PARAMETERS = 11_173_962


def host(number: int, speed: int = 10**9) -> Host:
    return Host(f"n{number}", f"10.0.0.{number}", f"n{number}", (), (), None, speed, ())


def inventory(hosts: int, gpus: str = "1", engine: str = "compose") -> str:
    lines = [
        f"  n{number}: {{address: 10.0.{number // 256}.{number % 256}, gpus: {gpus}"
        f"{', roles: [manager]' if number == 1 else ''}}}"
        for number in range(1, hosts + 1)
    ]
    return "\n".join(["cluster: c", f"engine: {engine}", "hosts:", *lines, ""])


def links(speeds: dict[tuple[int, int], float]) -> tuple[Link, ...]:
    return tuple(Link(f"n{a}", f"n{b}", speed, speed, 1e-4) for (a, b), speed in speeds.items())


def step(seconds: float, gpu: str = "GPU 0", job: str = "j") -> StepTime:
    return StepTime(job, "n1", gpu, seconds, 64, PARAMETERS, "resnet18", "cifar10")


@given(st.integers(2, 40))
def test_each_pair_meets_once_and_no_host_twice_in_a_round(count: int) -> None:
    hosts = list(range(count))
    turns = rounds(hosts)
    assert len(turns) == count - 1 + count % 2
    for pairs in turns:
        busy = [each for pair in pairs for each in pair]
        assert len(busy) == len(set(busy))
    assert sorted(pair for pairs in turns for pair in pairs) == list(combinations(hosts, 2))


def test_groups_grow_to_all() -> None:
    assert group_sizes(2) == []
    assert group_sizes(3) == [3]
    assert group_sizes(9) == [3, 4, 8, 9]


@given(st.integers(0, 10**6), st.integers(4, 12))
def test_a_slow_link_and_a_slow_host_are_found_and_noise_is_not(seed: int, count: int) -> None:
    chance = random.Random(seed)
    hosts = [host(number) for number in range(count)]

    def noisy(usual: float) -> float:
        return usual * chance.uniform(0.93, 1.0)

    pairs = list(combinations(range(count), 2))
    even = {pair: noisy(9.4e8) for pair in pairs}
    rates = tuple(HostRates(each.name, "", noisy(2e8), None, "data", noisy(50)) for each in hosts)
    well = Measurements(hosts=rates, links=links(even))
    assert findings(well, hosts) == []

    ill = chance.choice(pairs)
    found = findings(replace(well, links=links({**even, ill: 1e8})), hosts)
    assert [each.where for each in found] == [f"n{ill[0]} → n{ill[1]}"]
    assert found[0].factor == pytest.approx(9.1, abs=0.5)

    slow = chance.randrange(count)
    speeds = {pair: 2e8 if slow in pair else speed for pair, speed in even.items()}
    found = findings(replace(well, links=links(speeds)), hosts)
    assert {each.where for each in found} == {f"n{slow}"}

    lame = replace(rates[slow], cpu_steps=20.0)
    found = findings(replace(well, hosts=(*rates[:slow], lame, *rates[slow + 1 :])), hosts)
    assert [each.where for each in found] == [f"n{slow}"]
    assert "times slower than the median" in found[0].what


def test_gpus_are_held_against_each_other_and_their_data_sheet() -> None:
    def rates(name: str, operations: float, model: str = "NVIDIA H100 80GB HBM3") -> HostRates:
        return HostRates(name, "", gpus=(GpuRates("", model, operations, 3e12),))

    well = [rates(f"n{number}", 7e14) for number in range(3)]
    assert findings(Measurements(hosts=tuple(well)), []) == []
    (found,) = findings(Measurements(hosts=(*well, rates("n3", 5e14))), [])
    assert found.where == "n3 GPU 0"
    (found,) = findings(Measurements(hosts=(rates("n0", 3e14),)), [])
    assert "300 TFLOPS, the data sheet says 989" in found.what


def test_models_are_told_apart() -> None:
    for name, operations in (
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("TITAN RTX", 130.5e12),
        ("Tesla T4", 65e12),
        ("NVIDIA GB10", 125e12),
    ):
        sheet = sheet_of(name)
        assert sheet is not None
        assert sheet.operations == operations
    assert sheet_of("GeForce GTX 1080") is None


def test_the_file_keeps_what_was_measured(tmp_path: Path) -> None:
    one = Measurements(
        "",
        (HostRates("n1", "10.0.0.1", 2e8, None, "data", 12.5), HostRates("n2", "10.0.0.2")),
        links({(1, 2): 9.41e8}),
        (Reduction(("n1", "n2"), "gloo", 2**20, 0.0125),),
        (step(0.05), step(0.1, job="other")),
    )
    path = file.store(tmp_path / "inventory.yaml", one)
    assert path == tmp_path / "measurements.json"
    read = file.load(tmp_path / "inventory.yaml")
    assert replace(read, measured="") == one
    assert read.measured.endswith("Z")

    file.store(tmp_path / "inventory.yaml", Measurements(steps=(step(0.2),)))
    assert {each.job: each.seconds for each in file.load(tmp_path / "inventory.yaml").steps} == {
        "j": 0.2,
        "other": 0.1,
    }
    moved = read.of_hosts({"n1": "10.0.0.1", "n2": "10.9.9.9"})
    assert (len(moved.hosts), moved.links, moved.reductions) == (1, (), ())


@pytest.mark.parametrize(
    "text", ["", "[]", '{"links": [{"one": 1}]}', '{"hosts": 3}', "{" * 10_000, '{"odd": \ud800}']
)
def test_a_file_that_is_no_measurement_is_refused(project: Project, text: str) -> None:
    project.write(inventory(2), {"j": RESNET})
    (project.folder / "measurements.json").write_bytes(text.encode(errors="surrogatepass"))
    result = project.kit("plan")
    assert result.status == 2
    assert "measurements.json: " in result.err
    assert "delete the file and run `kit bench` again" in result.err


def test_a_reduction_is_known_from_the_nearest_group() -> None:
    def reduction(names: str, speed: float) -> Reduction:
        members = tuple(names)
        share = 2 * (len(members) - 1) / len(members)
        return Reduction(members, "gloo", 10**6, share * 8e6 / speed)

    measured = Measurements(
        reductions=(reduction("ab", 9e8), reduction("bc", 5e8), reduction("abcd", 4e8))
    )
    assert measured.reduction_speed(["a", "b"]) == pytest.approx(9e8)
    assert measured.reduction_speed(["a", "b", "c"]) == pytest.approx(4e8)
    assert measured.reduction_speed(["b", "e"]) is None
    assert measured.reduction_speed(["a", "b", "e"]) is None, "nothing is known of e"
    pairs = (reduction("ab", 9e8), reduction("bc", 5e8), reduction("ac", 8e8))
    assert Measurements(reductions=pairs).reduction_speed(["a", "b", "c"]) == pytest.approx(5e8)


def test_a_new_bench_of_some_hosts_keeps_what_it_did_not_measure() -> None:
    def made(names: str, address: str = "") -> Measurements:
        pairs = tuple(combinations(names, 2))
        return Measurements(
            hosts=tuple(HostRates(name, f"10.0.0.{name}{address}") for name in names),
            links=tuple(Link(a, b, 1e9, 1e9, 1e-4) for a, b in pairs),
            reductions=tuple(Reduction(pair, "gloo", 10**6, 0.1) for pair in pairs),
        )

    def groups(measured: Measurements) -> list[str]:
        return sorted("".join(each.hosts) for each in measured.reductions)

    old = made("abc")
    again = old.updated(made("ab"))
    assert groups(again) == ["ab", "ac", "bc"]
    assert sorted(each.one + each.other for each in again.links) == ["ab", "ac", "bc"]
    moved = old.updated(made("ab", address="7"))
    assert groups(moved) == ["ab"], "others were measured at the old addresses"
    assert [each.name for each in moved.hosts] == ["c", "a", "b"]


def forecast(
    project: Project,
    measured: Measurements,
    *,
    hosts: int = 4,
    gpus: str = "1",
    job: str = RESNET,
    overlay: bool = False,
) -> Prediction:
    made = predict(plan_of(project, hosts, gpus, job), measured, overlay=overlay)
    assert made is not None
    return made


def plan_of(project: Project, hosts: int, gpus: str = "1", job: str = RESNET) -> JobPlan:
    return project.write(inventory(hosts, gpus), {"j": job}).plan().jobs[0]


def test_the_speed_of_hosts_follows_from_step_and_links(project: Project) -> None:
    """44.7 MB over 1 Gbit/s of TCP's payload: the ring of two takes 380 ms, of four 570 ms."""
    made = forecast(project, Measurements(steps=(step(0.06),)))
    one, two, three, four = made.forecasts
    assert (one.step, one.exchange, one.speed_up) == (0.06, 0, 1)
    payload = 1448 / 1538
    ring = 44_695_848 * 8 / 1e9 / payload
    assert two.exchange == pytest.approx(ring - 0.04)
    assert three.step == pytest.approx(0.02 + ring * 4 / 3)
    assert four.step == pytest.approx(0.02 + ring * 3 / 2)
    assert four.images_per_second == pytest.approx(4 * 64 / four.step)
    assert made.worth == 1
    assert made.wanted_speed is not None
    assert 10e9 < made.wanted_speed < 50e9
    assert not made.measured_links
    slower = forecast(project, Measurements(steps=(step(0.06),)), overlay=True)
    assert slower.forecasts[1].exchange > two.exchange


def test_measured_links_count_instead_of_declared_ones(project: Project) -> None:
    steps = (step(0.06),)
    speeds = links(dict.fromkeys(combinations(range(1, 5), 2), 9.4e9))
    fast = forecast(
        project,
        Measurements(
            hosts=tuple(HostRates(f"n{number}", "") for number in range(1, 5)),
            links=speeds,
            steps=steps,
        ),
    )
    assert fast.measured_links
    assert fast.forecasts[-1].efficiency > 0.7
    assert fast.worth == 4


@pytest.fixture(scope="module")
def four_hosts(tmp_path_factory: pytest.TempPathFactory) -> JobPlan:
    return plan_of(Project(tmp_path_factory.mktemp("plan")), 4)


@given(seconds=st.floats(1e-4, 10), speed=st.floats(1e7, 1e11))
def test_hosts_together_are_never_faster_than_their_sum(
    four_hosts: JobPlan, seconds: float, speed: float
) -> None:
    names = [f"n{number}" for number in range(1, 5)]
    measured = Measurements(
        links=links(dict.fromkeys(combinations(range(1, 5), 2), speed)),
        steps=(step(seconds),),
    )
    made = predict(four_hosts, measured, overlay=False)
    assert made is not None
    for number, each in enumerate(made.forecasts, start=1):
        assert each.hosts == tuple(names[:number])
        assert 0 < each.efficiency <= 1 + 1e-9
        assert each.speed_up <= number + 1e-9
    assert all(0 < way.efficiency <= 1 + 1e-9 for way in made.ways)


@given(seconds=st.floats(1e-4, 10), speed=st.floats(1e7, 1e11))
def test_half_of_the_bytes_never_take_longer(
    four_hosts: JobPlan, seconds: float, speed: float
) -> None:
    measured = Measurements(
        links=links(dict.fromkeys(combinations(range(1, 5), 2), speed)),
        steps=(step(seconds),),
    )
    made = predict(four_hosts, measured, overlay=False)
    assert made is not None
    rates = {way.compression: way for way in reversed(made.ways) if way.mode == "every_step"}
    assert rates["fp16"].images_per_second >= rates["none"].images_per_second


def test_the_prediction_takes_time_in_proportion_to_the_hosts(project: Project) -> None:
    """Each number of hosts in turn took a minute for 4,000: 16 times the time of 1,000."""

    def seconds(job: JobPlan) -> float:
        begun = time.process_time()
        made = predict(job, Measurements(steps=(step(0.06),)), overlay=False)
        assert made is not None
        assert [len(each.hosts) for each in made.forecasts][:9] == [*range(1, 9), 16]
        return time.process_time() - begun

    some, more = plan_of(project, 250), plan_of(project, 1000)
    assert min(map(seconds, 3 * [more])) < 9 * min(map(seconds, 3 * [some]))


def test_an_old_gpu_that_costs_more_than_it_brings_is_named(project: Project) -> None:
    mixed = "[{index: 0, model: A100}, {index: 1, model: A100}, {index: 2, model: GTX}]"
    steps = (step(0.05, "A100"), step(0.5, "GTX"))
    made = forecast(project, Measurements(steps=steps), hosts=1, gpus=mixed)
    assert made.better_without is not None
    who, factor = made.better_without
    assert who == "GTX of n1"
    assert factor == pytest.approx((2 / 0.05) / (3 / 0.5))
    balanced = RESNET.replace("batch_size: 64", "batch_size: 64, balance: auto")
    even = forecast(project, Measurements(steps=steps), hosts=1, gpus=mixed, job=balanced)
    assert even.better_without is None


def test_the_last_bucket_is_what_ddp_leaves_to_the_end() -> None:
    assert last_bucket(1000) == 1000
    assert last_bucket(FIRST_BUCKET + BUCKET) == BUCKET
    assert last_bucket(FIRST_BUCKET + BUCKET + 5) == 5


def test_kit_plan_shows_the_prediction_and_render_does_not_depend_on_it(project: Project) -> None:
    project.write(inventory(2), {"j": RESNET})
    tree = project.rendered()
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    rates = (HostRates("n1", "10.0.0.1"), HostRates("n2", "10.0.0.2"))
    measured = Measurements("", rates, links({(1, 2): 9.4e9}), (), (step(0.06),))
    file.store(project.folder / "inventory.yaml", measured)
    shown = project.kit("plan")
    assert shown.status == 0
    assert "predicted   from a step of 60 ms on GPU 0, and measured links" in shown.out
    assert "38 ms by ring all-reduce over 9.4Gbit" in shown.out
    assert "worth it    yes, all 2 hosts" in shown.out
    found = json.loads(project.kit("plan", "--json").out)["jobs"][0]["prediction"]
    assert [len(each["hosts"]) for each in found["forecasts"]] == [1, 2]
    assert project.kit("render", "--check").status == 0
    assert {path: path.read_bytes() for path in before} == before


def test_a_step_of_an_earlier_run_is_read_from_its_epochs(project: Project) -> None:
    job = plan_of(project, 2)

    def line(rate: float | None, share: float | None) -> LogLine:
        event = events.Epoch(
            epoch=1, epochs=2, step=3, steps=6, world_size=2, images_per_second=rate,
            exchange_share=share,
        )  # fmt: skip
        return LogLine("j", "n1", event_lines.line(event), 0)

    found = from_run(job, [line(10, 0.9), line(1000, 0.25), line(1000, 0.25), line(None, None)])
    assert found.seconds == pytest.approx(128 / 1000 * 0.75)
    with pytest.raises(InputError, match="has no epoch with its speed"):
        from_run(job, [line(None, 0.1)])
    mixed = plan_of(project, 1, "[{index: 0, model: A100}, {index: 1, model: GTX}]")
    with pytest.raises(InputError, match="runs on A100, GTX"):
        from_run(mixed, [line(1000, 0.25)])
    with pytest.raises(InputError, match="does not say of which model the GPUs of job j are"):
        from_run(plan_of(project, 1, "2"), [line(1000, 0.25)])


def test_the_container_gets_its_gpus_and_a_mount_that_is_there(tmp_path: Path) -> None:
    gpu = Gpu("GPU-1", True, None, None, Use.TRAINING)
    mount = MountPoint("bind", str(tmp_path / "it's"), "/data", True)
    words = command(host(1), "image:1", ("-c", "pass"), gpus=[gpu], mounts=[mount])
    assert words[0] == "ssh"
    script = words[-1]
    # The shell of the host runs it; here a docker that shows its arguments stands for Docker.
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done\n')
    docker.chmod(0o755)

    def run() -> list[str]:
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        done = subprocess.run(
            ["sh", "-c", script], env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    assert not [word for word in run() if word.startswith("--mount")]
    (tmp_path / "it's").mkdir()
    found = run()
    assert found[:2] == ["run", "--rm"]
    assert '--gpus="device=GPU-1"' in found
    assert f"--mount=type=bind,source={tmp_path}/it's,target=/data,readonly" in found
    assert found[-3:] == ["image:1", "-c", "pass"]
    fast = command(host(1), "image:1", (), infiniband=True)[-1]
    assert "[ -e /dev/infiniband ] && set -- " in fast
    assert "--device=/dev/infiniband --cap-add=IPC_LOCK --ulimit=memlock=-1" in fast
    without = command(host(1), "image:1", ())[-1]
    assert "--env=NVIDIA_VISIBLE_DEVICES=void" in without


def test_hosts_are_measured_by_the_program_that_runs_on_them(tmp_path: Path) -> None:
    """On addresses of this machine, with real sockets, files and PyTorch."""
    hosts = [Host(f"n{at}", f"127.0.0.{at}", "", (), (), None, 10**9, ()) for at in (1, 2)]
    program = (sys.executable, "-u", "-c", program_text("probe.py"))
    told: list[str] = []
    with ExitStack() as stack:
        started = start({each.name: program for each in hosts}, stack)
        agents = {name: each for name, each in started.items() if isinstance(each, Program)}
        assert len(agents) == 2
        results = measure(hosts, agents, told.append)
        (tmp_path / "data").write_bytes(bytes(64 * 2**20))
        data = agents["n1"].ask("disk", folder=str(tmp_path), seconds=5)
        with pytest.raises(RefusedError, match=r"n1: .*refused"):
            agents["n1"].ask("ping", to=["127.0.0.1", 1], count=1)
    assert results.failures == ()
    found = results.measurements
    assert [(each.one, each.other) for each in found.links] == [("n1", "n2")]
    assert found.links[0].speed > 1e8
    assert 0 < found.links[0].round_trip < 1
    assert [(each.hosts, each.library) for each in found.reductions] == [(("n1", "n2"), "gloo")]
    assert found.reductions[0].speed > 1e7
    assert [each.disk_of for each in found.hosts] == ["container", "container"]
    assert all(each.disk_read and each.disk_write and each.cpu_steps for each in found.hosts)
    assert (data["of"], data["read"] > 1e6) == ("data", True)
    assert "links: round 1 of 1, 1 pair" in told


def test_all_ports_of_a_host_are_measured() -> None:
    """Each port by itself, so that one without a link is named, and all at the same time."""
    hosts = [Host(f"n{at}", "127.0.0.1", "", (), (), None, 10**9, ()) for at in (1, 2)]
    program = (sys.executable, "-u", "-c", program_text("probe.py"))
    with ExitStack() as stack:
        started = start({each.name: program for each in hosts}, stack)
        agents = {name: each for name, each in started.items() if isinstance(each, Program)}
        one, other = agents["n1"], agents["n2"]
        places = other.ask("serve", address="127.0.0.1", interfaces=["lo"])["places"]
        assert [address for address, _ in places] == ["127.0.0.1"]
        both = [*places, *other.ask("serve", address="127.0.0.2", interfaces=[])["places"]]
        assert one.ask("stream", to=both, seconds=0.2, streams=2)["speed"] > 1e8
        with pytest.raises(RefusedError, match="no IPv4 address on interface nowhere0"):
            other.ask("serve", address="127.0.0.1", interfaces=["lo", "nowhere0"])
        ports = {"n1": ["lo"], "n2": ["lo", "nowhere0"]}
        failures = measure(hosts, agents, lambda _: None, ports).failures
    assert [each for each in failures if "nowhere0" in each]


def test_the_bench_gives_nccl_all_ports() -> None:
    network = Network("host", None, "", 9000, True, False, (("NCCL_IB_HCA", "=a,b"),))
    assert nccl_variables(("eth1", "eth2"), network) == {
        "NCCL_SOCKET_IFNAME": "=eth1,eth2",
        "NCCL_IB_HCA": "=a,b",
    }
    assert nccl_variables((), network) == {"NCCL_IB_HCA": "=a,b"}


def test_a_program_that_does_not_start_says_why() -> None:
    with ExitStack() as stack:
        words = ("sh", "-c", "echo 'docker: no such image' >&2; exit 125")
        (error,) = start({"n1": words}, stack).values()
    assert "n1: its container ended: no such image" in str(error)


def running() -> SimpleNamespace:
    """Return a target with a job that runs."""
    status = SimpleNamespace(job="digits", state=State.RUNNING)
    return SimpleNamespace(status=lambda: (status,), on_hosts=False, tied_to_terminal=True)


def test_a_step_is_measured_on_this_machine(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = "image: i\ntrain: {dataset: digits, model: cnn, epochs: 2, batch_size: 32}\n"
    project.write(inventory(1, engine="local"), {"digits": digits})
    done = kit_process(project.folder, "bench", "step", "digits", "--seconds", "0.5")
    assert (done.status, done.err.count("Traceback")) == (0, 0), done.err
    (found,) = file.load(project.folder / "inventory.yaml").steps
    assert (found.job, found.gpu, found.batch_size, found.parameters) == (
        "digits",
        "cpu",
        32,
        53002,
    )
    assert 0 < found.seconds < 10
    refused = project.kit("bench")
    assert refused.status == 2
    assert "there are no other hosts to measure" in refused.err
    monkeypatch.setattr("kit.commands.bench.target_for", lambda *_: running())
    (project.folder / "compose" / "c").mkdir(parents=True)
    beside = project.kit("bench", "step", "digits")
    assert (beside.status, "digits runs, and measuring would slow it" in beside.err) == (2, True)
    unknown = project.kit("bench", "step", "digit")
    assert (unknown.status, "there is no job digit" in unknown.err) == (2, True)
    project.write(inventory(1, engine="local"), {"digits": digits + "parallel: {data: 1}\n"})
    divided = project.kit("bench", "step", "digits")
    assert (divided.status, "divided: one GPU has no step of it" in divided.err) == (2, True)
