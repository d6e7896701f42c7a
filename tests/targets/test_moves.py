"""GPUs change hands: they are released before they are reassigned, under Swarm and by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import KitError
from kit.runtime.proof import not_deployed, wrong_gpus
from kit.runtime.status import HostStatus, JobStatus, State
from kit.runtime.steps import Step
from kit.targets.lowered import Lowered
from kit.targets.swarm.decide import decide
from kit.targets.swarm.order import in_order
from kit.targets.swarm.state import Cluster
from kit.targets.swarm.steps import (
    AwaitEnd,
    AwaitGpus,
    DeployStack,
    Label,
    MakeSecret,
    RemoveStack,
    UpdateService,
)
from kit.workload.types import Kind, Workload
from tests.sandbox import INVENTORY, JOB, SERVER, Project
from tests.targets.test_swarm import FILE, cluster, node, service, task

NAMES = ["a", "b", "c", "d"]
GPUS = [f"GPU-{number}" for number in range(5)]
ORIN, THOR = "4f6b9ae2-9f0e-5c3d-8a51-27b9c0d1e2f3", "0a1b2c3d-9f0e-5c3d-8a51-27b9c0d1e2f3"


def work(name: str, gpus: set[str]) -> Workload:
    """Something that wants GPUs of one host."""
    made = mock.Mock()
    host = mock.Mock()
    host.name, made.name, made.queue = "pc", name, None
    given = [mock.Mock(resource=gpu) for gpu in sorted(gpus)]
    made.placements = [mock.Mock(host=host, gpus=given)] if gpus else []
    return made


@given(
    wanted=st.dictionaries(st.sampled_from(GPUS), st.sampled_from(NAMES)),
    held=st.dictionaries(st.sampled_from(GPUS), st.sampled_from([*NAMES, "stranger"])),
)
def test_a_gpu_is_free_when_its_turn_comes(wanted: dict[str, str], held: dict[str, str]) -> None:
    every = [work(name, {gpu for gpu, who in wanted.items() if who == name}) for name in NAMES]
    ordered, first = in_order(every, {("pc", gpu): name for gpu, name in held.items()})
    assert sorted(each.name for each in ordered) == NAMES
    done: set[str] = set()
    for each in ordered:
        for gpu, who in wanted.items():
            if who == each.name and held.get(gpu) in set(NAMES) - {who}:
                assert held[gpu] in done | first
        done.add(each.name)
    if all(held.get(gpu) in {None, who, "stranger"} for gpu, who in wanted.items()):
        assert first == set()


VERSIONS = dict.fromkeys(
    ("platform.stack.yaml", "train-digits.stack.yaml", "serve-digits.stack.yaml"), FILE
)
HOSTS = {"pc1", "pc2"}


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    """GPU-a and GPU-b train, GPU-c of pc2 serves."""
    folder: Path = tmp_path_factory.mktemp("split")
    return Project(folder).write(INVENTORY, {"digits": JOB}, {"digits": SERVER}).lowered()


def before() -> Cluster:
    """All of pc2 trains yet, as one of equal hosts whose GPUs had no names in the inventory."""
    whole = service("train-2gpu", gpus=2)
    return cluster(
        task("train-on-pc1", "pc1", "running", devices=("all",)),
        task("train-2gpu", "pc2", "running", devices=("all",)),
        services=(
            service("network", "lab-platform"),
            service("rendezvous"),
            service("train-on-pc1", gpus=1),
            replace(whole, labels=(("kit.file", "older000"), ("kit.job", "digits"))),
        ),
        nodes=(
            node("pc1", manager=True, kit_job_digits="train-on-pc1"),
            node("pc2", kit_job_digits="train-2gpu"),
        ),
    )


def test_training_has_ended_on_a_host_before_anybody_gets_its_gpus(lowered: Lowered) -> None:
    steps = decide("lab", lowered.workloads, before(), VERSIONS, {}, HOSTS, fresh=False)
    assert [type(step) for step in steps] == [
        MakeSecret,  # The key of the server's checkpoints.
        Label,  # Ends the old task,
        AwaitEnd,  # which saves;
        Label,
        Label,
        DeployStack,
        AwaitGpus,
        DeployStack,
    ]
    _, evict, wait, *labels = steps[:5]
    assert isinstance(evict, Label)
    assert isinstance(wait, AwaitEnd)
    assert evict.labels == (("kit.job.digits", "none"),)
    assert (wait.host, wait.service) == ("pc2", "train-digits_train-2gpu")
    assert [step.labels for step in labels if isinstance(step, Label)] == [
        (("kit.job.digits", "train-on-pc2"),),
        (("kit.job.serve-digits", "serve-on-pc2"),),
    ]
    assert all(step.where != "pc1" for step in steps)
    assert isinstance(steps[6], AwaitGpus)
    assert steps[6].gpus == frozenset({("pc2", "GPU-c")})


def test_a_host_that_leaves_a_job_loses_its_label_once(lowered: Lowered) -> None:
    job = lowered.workloads[0]
    rendezvous, _, on_pc2 = job.parts
    alone = replace(job, parts=(rendezvous, on_pc2))
    seen = cluster(
        task("train-on-pc1", "pc1", "running", devices=("all",)),
        task("train-on-pc2", "pc2", "running", devices=("GPU-b",)),
    )
    steps = decide("lab", [alone], seen, VERSIONS, {}, HOSTS, fresh=False)
    assert [(type(step), step.where) for step in steps] == [(Label, "pc1"), (AwaitEnd, "pc1")]


def test_nothing_waits_for_a_host_that_has_left_the_inventory(lowered: Lowered) -> None:
    job = lowered.workloads[0]
    rendezvous, _, on_pc2 = job.parts
    alone = replace(job, parts=(rendezvous, on_pc2))
    seen = cluster(
        task("train-1gpu", "pc1", "running", devices=("all",)),
        task("train-on-pc2", "pc2", "running", devices=("GPU-b",)),
    )
    steps = decide("lab", [alone], seen, VERSIONS, {}, {"pc2"}, fresh=False)
    # kit cannot reach its engine, and does not reassign its GPUs.
    assert [(type(step), step.where) for step in steps] == [(Label, "pc1")]


def test_a_server_without_a_gpu_goes_first(lowered: Lowered) -> None:
    serving = replace(
        service("serve-on-pc2", "serve-digits", gpus=1), labels=(("kit.server", "serve-digits"),)
    )
    seen = cluster(
        task("train-on-pc1", "pc1", "running", devices=("all",)),
        task("train-on-pc2", "pc2", "running", devices=("GPU-b",)),
        task("serve-on-pc2", "pc2", "running", stack="serve-digits", devices=("GPU-c",)),
    )
    seen = replace(seen, services=(*seen.services, serving))
    job, server = lowered.workloads
    steps = decide("lab", [job, replace(server, parts=())], seen, VERSIONS, {}, HOSTS, fresh=False)
    assert [(type(step), step.cause) for step in steps] == [(RemoveStack, "no GPU is given to it")]


def test_a_gpu_of_somebody_who_takes_no_part_is_refused(lowered: Lowered) -> None:
    with pytest.raises(Exception, match="GPU-c of pc2 is held by digits: deploy digits too"):
        decide("lab", lowered.workloads[1:], before(), VERSIONS, {}, HOSTS, fresh=False)


@pytest.mark.parametrize(
    ("owner", "ending"),
    [
        ({"kit.job": "digits"}, "end it with `kit stop digits`"),
        ({}, "end it with `docker stack rm train-digits`"),
        (None, "it still ends, try again in a moment"),
    ],
)
def test_the_way_to_a_gpu_of_somebody_without_a_file(
    lowered: Lowered, owner: dict[str, str] | None, ending: str
) -> None:
    """His file is gone, he is no job of kit's, or only his tasks are left."""
    seen = before()
    services = [replace(each, labels=tuple((owner or {}).items())) for each in seen.services]
    seen = replace(seen, services=tuple(services) if owner is not None else ())
    versions = {name: text for name, text in VERSIONS.items() if name != "train-digits.stack.yaml"}
    with pytest.raises(KitError) as error:
        decide("lab", lowered.workloads[1:], seen, versions, {}, HOSTS, fresh=False)
    name = "digits" if owner else "train-digits"
    assert str(error.value) == f"serve-digits: GPU-c of pc2 is held by {name}: {ending}"


def test_what_two_have_in_common_is_told_once(lowered: Lowered) -> None:
    seen = replace(before(), nodes=before().nodes[:1])
    with pytest.raises(KitError) as error:
        decide("lab", lowered.workloads, seen, VERSIONS, {}, HOSTS, fresh=False)
    assert str(error.value) == "pc2 is not a node of the swarm: kit swarm up"


def status(name: str, *, given: tuple[str, ...], seen: tuple[str, ...]) -> JobStatus:
    host = HostStatus("pc", 1, State.RUNNING, None, devices=given, seen=seen)
    return JobStatus(name, Kind.JOB, State.RUNNING, "", 0, None, (host,), None, None)


@pytest.mark.parametrize(
    ("given", "seen", "wrong"),
    [
        (("GPU-a", "GPU-b"), ("GPU-b", "GPU-A"), ""),
        (("GPU-a",), (), ""),  # It has not said yet.
        (("0", "1"), ("GPU-x", "GPU-y"), ""),
        (("all",), ("GPU-x",), ""),
        (("GPU-a",), ("GPU-b",), "j on pc sees GPU-b, but was given GPU-a"),
        (("GPU-a",), ("GPU-a", "GPU-b"), "j on pc sees GPU-a, GPU-b, but was given GPU-a"),
        ((ORIN,), (THOR,), f"j on pc sees {THOR}, but was given {ORIN}"),
        (("0",), ("GPU-x", "GPU-y"), "j on pc sees GPU-x, GPU-y, but was given 1 GPU"),
    ],
)
def test_what_is_seen_is_held_against_what_was_given(
    given: tuple[str, ...], seen: tuple[str, ...], wrong: str
) -> None:
    assert wrong_gpus([status("j", given=given, seen=seen)]) == ((wrong,) if wrong else ())


def test_two_that_see_the_same_gpu_are_told() -> None:
    both = [status(name, given=("all",), seen=("GPU-a",)) for name in ("j", "serve-s")]
    assert wrong_gpus(both) == ("GPU-a on pc is seen by j and serve-s",)
    ended = replace(both[0], state=State.COMPLETED)
    assert wrong_gpus([ended, both[1]]) == ()


@pytest.mark.parametrize(
    ("given", "planned", "said"),
    [
        (("GPU-a", "GPU-b"), {"pc": ("gpu-b", "GPU-a")}, ""),
        (("GPU-x", "GPU-y"), {"pc": ("0", "1")}, ""),  # Swarm names those of a whole host.
        (("all",), {"pc": ("0", "1")}, ""),
        (("GPU-a",), {"pc": ("GPU-a", "GPU-b")}, "pc has GPU-a, the files give it GPU-a, GPU-b"),
        (("GPU-a",), {"pc": ("GPU-b",)}, "pc has GPU-a, the files give it GPU-b"),
        (("GPU-a", "GPU-b"), {"pc": ("0",)}, "pc has 2 GPUs, the files give it 1 GPU"),
        (
            ("0",),
            {"pc2": ("0",)},
            "pc has 1 GPU, the files give it none; pc2 has none, the files give it 1 GPU",
        ),
        (("all",), {}, "pc has all GPUs, the files give it none"),
        (
            ("GPU-a",),
            {"pc2": ("GPU-c",)},
            "pc has GPU-a, the files give it none; pc2 has none, the files give it GPU-c",
        ),
    ],
)
def test_what_was_given_is_held_against_the_files(
    given: tuple[str, ...], planned: dict[str, tuple[str, ...]], said: str
) -> None:
    living = status("j", given=given, seen=())
    assert not_deployed([living], {"j": planned}) == ((f"j: {said}",) if said else ())
    assert not_deployed([replace(living, state=State.COMPLETED)], {"j": planned}) == ()
    assert not_deployed([living], {"another": planned}) == ()
    waiting = replace(living, hosts=(replace(living.hosts[0], state=State.WAITING),))
    assert not_deployed([waiting], {"j": {"pc": ("GPU-z",)}}) == ()


def two_servers(file: str) -> Cluster:
    """A server on both hosts, from a stack with this hash."""
    labels = (("kit.file", file), ("kit.server", "serve-both"))
    names = ("serve-on-pc1", "serve-on-pc2")
    return cluster(
        *(
            task(name, name[-3:], "running", stack="serve-both", devices=(gpu,))
            for name, gpu in zip(names, ("GPU-a", "GPU-b"), strict=True)
        ),
        services=(
            service("network", "lab-platform"),
            *(replace(service(name, "serve-both", gpus=1), labels=labels) for name in names),
        ),
        nodes=(
            node("pc1", manager=True, kit_job_serve_both="serve-on-pc1"),
            node("pc2", kit_job_serve_both="serve-on-pc2"),
        ),
    )


def test_the_hosts_of_a_server_are_updated_one_after_the_other(project: Project) -> None:
    inventory = INVENTORY.replace("GPU-a, memory", "GPU-a, use: inference, memory")
    inventory = inventory.replace("{uuid: GPU-b}", "{uuid: GPU-b, use: inference}")
    own = "image: own:1\ncommand: [serve]\nport: 9000\nhosts: {gpus_per_host: 1}\n"
    works = project.write(inventory, {}, {"both": own}).lowered().workloads
    versions = {"platform.stack.yaml": FILE, "serve-both.stack.yaml": FILE}

    def updates(seen: Cluster) -> list[Step]:
        steps = decide("lab", works, seen, versions, {}, HOSTS, fresh=False)
        return [step for step in steps if not isinstance(step, Label)]

    *updated, last = updates(two_servers("older000"))
    assert isinstance(last, DeployStack)
    found = [
        (each.part, each.urls, each.others) for each in updated if isinstance(each, UpdateService)
    ]
    first, second = ("http://192.168.8.151:9000/health",), ("http://192.168.8.114:9000/health",)
    assert found == [("serve-on-pc1", first, second), ("serve-on-pc2", second, ())]
    assert updates(two_servers(FILE)) == []
    # Nothing runs yet: all begin at once.
    idle = replace(two_servers(FILE), services=two_servers(FILE).services[:1], tasks=())
    assert [type(step) for step in updates(idle)] == [DeployStack]


SWAP = """\
cluster: lab
engine: swarm
hosts:
  pc1:
    address: 192.168.8.151
    roles: [manager]
    gpus: [{uuid: GPU-a, use: inference}]
  pc2:
    address: 192.168.8.114
    gpus: [{uuid: GPU-b}, {uuid: GPU-c}]
"""


@pytest.mark.parametrize("proxied", [True, False])
def test_a_server_behind_a_proxy_answers_while_it_swaps_hosts_with_a_training(
    project: Project, proxied: bool
) -> None:
    """The cycle was broken by an end of the server and its proxy: 29 s without an answer."""
    server = SERVER + ("proxy: {port: 8000}\n" if proxied else "")
    lowered = project.write(SWAP, {"digits": JOB}, {"digits": server}).lowered()
    labels = (("kit.file", "older000"), ("kit.server", "serve-digits"))
    answers = replace(service("serve-on-pc2", "serve-digits", gpus=1), labels=labels)
    proxy = replace(service("proxy", "serve-digits"), labels=labels)
    seen = cluster(
        task("train-on-pc1", "pc1", "running", devices=("GPU-a",)),
        task("train-on-pc2", "pc2", "running", devices=("GPU-b",)),
        task("serve-on-pc2", "pc2", "running", stack="serve-digits", devices=("GPU-c",)),
        services=(
            service("network", "lab-platform"),
            service("rendezvous"),
            service("train-on-pc1", gpus=1),
            service("train-on-pc2", gpus=1),
            answers,
            *((proxy,) if proxied else ()),
        ),
        nodes=(
            node("pc1", manager=True, kit_job_digits="train-on-pc1"),
            replace(
                node("pc2", kit_job_digits="train-on-pc2"),
                labels=(
                    ("kit.host", "pc2"),
                    ("kit.job.digits", "train-on-pc2"),
                    ("kit.job.serve-digits", "serve-on-pc2"),
                ),
            ),
        ),
    )
    steps = decide("lab", lowered.workloads, seen, VERSIONS, {}, HOSTS, fresh=False)
    removed = [step.stack for step in steps if isinstance(step, RemoveStack)]
    assert removed == ["train-digits"]
    kinds = [type(step) for step in steps if not isinstance(step, MakeSecret | Label)]
    whats = [step.what for step in steps]
    ends = next(at for at, what in enumerate(whats) if what == "end serve-digits_serve-on-pc2")
    if not proxied:  # Its address changes: nobody can ask the new host before they know it.
        assert UpdateService not in kinds
        return
    wait, start, end, deploy = AwaitGpus, UpdateService, AwaitEnd, DeployStack
    assert kinds == [RemoveStack, wait, start, end, deploy, wait, deploy]
    begins = whats.index("start serve-digits_serve-on-pc1")
    (begun,) = [step for step in steps if isinstance(step, UpdateService)]
    assert begins < ends
    assert begun.others == ("http://192.168.8.151:8000/ready",)
    assert begun.urls == ("http://192.168.8.151:8080/ready",)
    assert [step.stack for step in steps if isinstance(step, DeployStack)] == [
        "serve-digits",
        "train-digits",
    ]
