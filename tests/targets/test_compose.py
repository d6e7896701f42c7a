"""Decisions and status of the Compose engine for given states of hosts: pure values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kit.commands.status import Report, show
from kit.errors import KitError
from kit.runtime.events import Reader
from kit.runtime.status import LogLine, State
from kit.runtime.steps import Step
from kit.targets.compose.containers import Container, HostState
from kit.targets.compose.decide import (
    Claim,
    DeleteCheckpoints,
    End,
    HostStep,
    Pull,
    Remove,
    Start,
    Unclaim,
    decide,
)
from kit.targets.compose.observe import container, ports
from kit.targets.compose.status import job_status, silent_host, silent_statuses
from kit.workload.types import Kind, Role, Workload
from tests.sandbox import JOB, SERVER, Project
from trainer.contract import event_lines, events
from trainer.contract.limit_events import Limit

INVENTORY = """\
cluster: lab
engine: compose
hosts:
  pc1: {address: 10.0.0.1, roles: [manager], gpus: [{uuid: GPU-a}]}
  pc2: {address: 10.0.0.2, gpus: [{uuid: GPU-b}, {uuid: GPU-c}]}
  pc3: {address: 10.0.0.3}
"""
IMAGE = "registry.lab:5000/trainer:0.2.0"
PORT = 29539  # 29400 + zlib.crc32(b"j") % 1000
BARE = HostState((), True, frozenset({22}), (), frozenset({IMAGE}), frozenset())
SEEN = {
    "pc1": replace(BARE, gpus=("GPU-a",)),
    "pc2": replace(BARE, gpus=("GPU-B", "GPU-c")),
    "pc3": replace(BARE, hook=False),
}
ENDED = Container(
    id="1",
    host="pc1",
    job="j",
    kind=Kind.JOB,
    cluster="lab",
    service="train",
    version="0000",
    status="exited",
    exit_status=0,
    error="",
    healthy=True,
    created=100.0,
    ended=160.0,
    restarts=0,
    most_restarts=10,
    devices=("GPU-a",),
    processes=1,
    spare=False,
    dispensable=0,
    checkpoints="kit-lab_j-checkpoints",
    image="alpine:3.20",
    coordinated=True,
)
RUNNING = replace(ENDED, status="running")
STORE = replace(RUNNING, id="s", service="rendezvous", devices=(), processes=0)


def planned(project: Project, job: str = JOB) -> Workload:
    return project.write(INVENTORY, {"j": job}).workload()


def having(*containers: Container, **changes: Any) -> dict[str, HostState]:
    """The observed state, with these containers on their hosts and this state of pc1."""
    there = {
        name: replace(seen, containers=tuple(one for one in containers if one.host == name))
        for name, seen in SEEN.items()
    }
    return {**there, "pc1": replace(there["pc1"], **changes)}


def done(steps: Sequence[Step]) -> list[tuple[type[Step], str]]:
    return [(type(step), step.where) for step in steps]


def decided(
    work: Workload | Sequence[Workload],
    seen: dict[str, HostState],
    *,
    fresh: bool = False,
    rendered: Collection[str] = (),
) -> tuple[Step, ...]:
    """The decision if all files have the version of RUNNING."""
    every = [work] if isinstance(work, Workload) else list(work)
    versions = {
        (each.name, host): {
            str(part.role): "0000"
            for part in each.parts
            if host in [one.name for one in part.hosts[: part.replicas]]
        }
        for each in every
        for host in each.hosts
    }
    return decide("lab", every, versions, seen, fresh=fresh, rendered=rendered)


def refusal(
    job: Workload,
    seen: dict[str, HostState],
    *,
    fresh: bool = False,
    rendered: Collection[str] = (),
) -> str:
    with pytest.raises(KitError) as error:
        decided(job, seen, fresh=fresh, rendered=rendered)
    return str(error.value)


def test_a_first_start_pulls_everywhere_and_starts(project: Project) -> None:
    actions = decided(planned(project), SEEN, fresh=True)
    kinds = [Pull, Pull, Start, Start]
    assert done(actions) == list(zip(kinds, ["pc1", "pc2"] * 2, strict=True))
    assert actions[3].what == "start j on GPU-b, GPU-c"


def test_what_an_ended_run_has_left_goes_from_all_hosts(project: Project) -> None:
    seen = having(ENDED, STORE, replace(ENDED, host="pc3"))
    seen["pc2"] = replace(seen["pc2"], volumes=frozenset({"kit-lab_j-checkpoints"}))
    job = planned(project)
    removed = [(Remove, "pc1"), (Remove, "pc3")]
    assert done(decided(job, seen))[2:4] == removed
    forgotten = done(decided(job, seen, fresh=True))[2:5]
    assert forgotten == [*removed, (DeleteCheckpoints, "pc2")]


def test_a_run_that_no_restart_can_help_begins_anew(project: Project) -> None:
    wrong: dict[str, Any] = {"status": "restarting", "exit_status": 2, "restarts": 3}
    seen = having(*(replace(one, **wrong) if one.trains else one for one in both()))
    steps = decided(planned(project), seen)
    assert [(type(step), step.cause) for step in steps if isinstance(step, Start)] == [
        (Start, "its run has ended")
    ] * 2


def both(**changes: Any) -> tuple[Container, ...]:
    """The job as it runs on pc1 and pc2, the second one changed."""
    return RUNNING, STORE, replace(RUNNING, id="2", host="pc2", **changes)


def test_what_runs_from_the_same_file_is_left_alone(project: Project) -> None:
    assert decided(planned(project), having(*both())) == ()


def test_the_containers_are_those_of_the_file(project: Project) -> None:
    """Two workloads were on one GPU: a server's container that its file no longer had."""
    work = planned(project)
    (second,) = [one for one in both() if one.host == "pc2"]

    def causes(*containers: Container) -> set[tuple[str, str, str]]:
        steps = decided(work, having(*containers))
        return {(step.where, step.what.split()[0], step.cause) for step in steps}

    lost = causes(STORE, second)
    assert ("pc1", "start", "its container train is not there") in lost
    assert {where for where, _, _ in lost} == {"pc1"}
    extra = replace(RUNNING, id="9", host="pc2", service="serve")
    found = causes(*both(), extra)
    assert ("pc2", "remove", "its file has no serve now") in found
    assert ("pc2", "end", "its file has no serve now") in found
    assert {where for where, _, _ in found} == {"pc2"}
    assert causes(*both(), replace(extra, service="sidecar", version="")) == set()


@pytest.mark.parametrize("own", [(), (replace(STORE, status="exited"),)])
def test_a_coordinator_that_was_stopped_is_started_alone(
    project: Project, own: tuple[Container, ...]
) -> None:
    """The hosts train on meanwhile; the status says that none can be replaced."""
    training = [one for one in both() if one.trains]
    [step] = decided(planned(project), having(*training, *own))
    assert (type(step), step.where, step.cause) == (Start, "pc1", "it does not run")
    said = job_status("j", [*training, *own], (), Reader()).message
    assert said.startswith(f"its coordinator {'on pc1 was stopped' if own else 'is not there'}:")
    assert "coordinator" not in job_status("j", list(both()), (), Reader()).message


def test_what_was_changed_by_hand_is_started_again(project: Project) -> None:
    work = planned(project)
    versions = {
        ("j", "pc1"): {"train": "0000", "rendezvous": "0000"},
        ("j", "pc2"): {"train": "0000"},
    }
    hand = {("j", "pc2"): "changed by hand: train: gpus is GPU-b, not GPU-b GPU-c"}
    steps = decide("lab", [work], versions, having(*both()), hand, fresh=False)
    assert done(steps) == [(Pull, "pc2"), (End, "pc2"), (Remove, "pc2"), (Start, "pc2")]
    assert {step.cause for step in steps[1:]} == set(hand.values())


@pytest.mark.parametrize("status", ["running", "restarting", "paused"])
def test_a_changed_host_is_ended_and_started_alone(project: Project, status: str) -> None:
    actions = decided(planned(project), having(*both(version="1111", status=status)))
    kinds = [Pull, End, Remove, Start]
    assert done(actions) == [(kind, "pc2") for kind in kinds]
    assert {action.cause for action in actions[1:]} == {"its file has changed"}


def test_a_changed_coordinator_is_renewed_while_its_hosts_train_on(project: Project) -> None:
    one, store, other = both()
    actions = decided(planned(project), having(one, replace(store, version="1111"), other))
    assert done(actions) == [(Start, "pc1")]
    assert actions[0].what == "restart the coordinator of j; its hosts continue to train"


def test_an_unhealthy_container_is_started_again(project: Project) -> None:
    actions = decided(planned(project), having(*both(healthy=False)))
    assert done(actions) == [(kind, "pc2") for kind in (Pull, End, Remove, Start)]
    assert {action.cause for action in actions[1:]} == {"it is not healthy"}
    # A container that has ended, or is starting, has no health to report.
    assert decided(planned(project), having(*both(healthy=False, status="restarting"))) == ()


def test_another_clusters_job_of_the_same_name_is_left_alone(project: Project) -> None:
    foreign = replace(RUNNING, cluster="pool", devices=())
    actions = decided(planned(project), having(foreign, replace(foreign, host="pc3")))
    assert {(type(action), action.where) for action in actions} == {
        (kind, host) for kind in (Pull, Start) for host in ("pc1", "pc2")
    }


def test_a_host_that_has_left_the_job_is_ended(project: Project) -> None:
    left = replace(RUNNING, id="3", host="pc3")
    actions = decided(planned(project), having(*both(), left))
    assert done(actions) == [(End, "pc3"), (Remove, "pc3")]
    assert actions[0].cause == "it is no longer used"


def test_a_running_job_does_not_begin_anew(project: Project) -> None:
    said = refusal(planned(project), having(*both()), fresh=True)
    assert "job j runs on pc1, pc2: end it first, kit stop j" in said


def serving(project: Project) -> tuple[Workload, ...]:
    """The job on GPU-a and GPU-b, a server of it on GPU-c."""
    inventory = INVENTORY.replace("{uuid: GPU-c}", "{uuid: GPU-c, use: inference}")
    assert inventory != INVENTORY
    project.write(inventory, {"j": JOB}, {"s": SERVER.replace("digits", "j")})
    return project.lowered().workloads


def of_server(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if isinstance(step, HostStep) and step.name == "serve-s"]


def test_a_gpu_changes_hands_among_those_that_are_deployed(project: Project) -> None:
    actions = decided(serving(project), having(*both(version="1111", devices=("GPU-b", "GPU-c"))))
    assert [each for each in done(actions) if each[0] is End] == [(End, "pc2")]
    starts = [action.what for action in actions if isinstance(action, Start)]
    assert starts == [
        "start j on GPU-b",
        "start serve-s on GPU-c",
        "start serve-s, to offer checkpoints",
    ]


def test_a_gpu_of_somebody_elses_is_refused(project: Project) -> None:
    (_, server) = serving(project)
    seen = having(*both(devices=("GPU-b", "GPU-c")))
    said = refusal(server, seen, rendered={"j"})
    assert "pc2: GPU-c is held by job j; deploy it too, or end it with `kit stop j`" in said
    assert "pc2: GPU-c is held by job j; end it with `kit stop j`" in refusal(server, seen)
    stack = replace(RUNNING, host="pc2", job="k", cluster="", service="", devices=("GPU-c",))
    held = "pc2: GPU-c is held by job k of another engine; end it there"
    assert held in refusal(server, having(stack), rendered={"k"})


def test_a_job_of_the_queue_leaves_what_a_deploy_claims(project: Project) -> None:
    (_, server) = serving(project)
    queued = replace(RUNNING, id="5", host="pc2", job="q", devices=("GPU-b", "GPU-c"), since=1.0)
    steps = of_server(decided(server, having(queued)))
    assert done(steps) == [
        *((Pull, host) for host in ("pc2", "pc1")), (Claim, "pc2"),
        *((Start, host) for host in ("pc2", "pc1")), (Unclaim, "pc2"),
    ]  # fmt: skip
    (claim,) = [step for step in steps if isinstance(step, Claim)]
    assert (claim.what, claim.gpus) == ("claim GPU-c", ("GPU-c",))
    # What another cluster's queue has, this deploy cannot claim.
    elsewhere = replace(queued, cluster="other")
    assert "is held by job q of cluster other; end it there" in refusal(server, having(elsewhere))


def test_a_server_that_lost_its_gpu_is_ended(project: Project) -> None:
    project.write(INVENTORY, {"j": JOB}, {"s": SERVER.replace("digits", "j")})
    work = project.lowered().workloads
    answers = replace(RUNNING, id="9", host="pc2", job="serve-s", kind=Kind.SERVER)
    answers = replace(answers, service="serve")
    actions = of_server(decided(work, having(*both(), answers)))
    assert done(actions) == [(End, "pc2"), (Remove, "pc2")]


def test_a_server_gives_way_to_a_job_that_forgets_its_checkpoints(project: Project) -> None:
    answers = replace(RUNNING, id="9", host="pc2", job="serve-s", kind=Kind.SERVER)
    answers = replace(answers, service="serve")
    offers = replace(answers, id="8", service="checkpoints", devices=())
    elsewhere = replace(offers, id="7", host="pc1")
    actions = decided(serving(project), having(answers, offers, elsewhere), fresh=True)
    kinds = [type(action) for action in of_server(actions)]
    assert (kinds.count(End), kinds.count(Remove), kinds.count(Start)) == (1, 2, 2)


@pytest.mark.parametrize(
    ("other", "whose"),
    [
        (replace(RUNNING, cluster="pool"), "is held by job j of cluster pool; end it there"),
        (replace(RUNNING, cluster="", service=""), "another engine already runs"),
    ],
)
def test_a_job_of_that_name_that_is_another(project: Project, other: Container, whose: str) -> None:
    assert whose in refusal(planned(project), having(other))


def test_all_that_is_in_the_way_is_told_at_once(project: Project) -> None:
    holder = replace(RUNNING, host="pc2", job="k", devices=("1",))
    seen = having(holder, gpus=("GPU-z",), hook=False, ports=frozenset({PORT}))
    assert refusal(planned(project), seen).splitlines() == [
        "pc1: GPU-a does not exist; `nvidia-smi -L` lists GPU-z: correct the inventory, then run "
        "`kit render`",
        "pc1: Docker finds no nvidia-container-runtime-hook, which gives a container its GPUs; "
        "install nvidia-container-toolkit and restart Docker",
        f"pc1: port {PORT} is in use (`ss -tlnp` on the host shows by which process); end that, or "
        "write `rendezvous: {port: …}` in jobs/j.yaml",
        "pc2: GPU-c is held by job k; end it with `kit stop k`",
        "nothing was changed on any host",
    ]


def test_the_gpus_of_a_cut_uuid_are_named(project: Project) -> None:
    whole = "GPU-7af7a99b-2d3c-0d1c-6fc2-4d5b0e1a2c3d"
    job = project.write(INVENTORY.replace("GPU-a", whole[:12]), {"j": JOB}).workload()
    said = (
        f"pc1: {whole[:12]} is the beginning of {whole}: run `kit discover pc1`, then `kit render`"
    )
    assert said in refusal(job, having(gpus=(whole,)))


def test_a_job_that_has_all_gpus_holds_them(project: Project) -> None:
    said = refusal(
        planned(project), having(replace(RUNNING, host="pc2", job="k", devices=("all",)))
    )
    assert "pc2: GPU-b, GPU-c are held by job k" in said


def test_indexes_count_the_gpus_that_are_there(project: Project) -> None:
    inventory = INVENTORY.replace("[{uuid: GPU-a}]", "2")
    job = project.write(inventory, {"j": JOB}).workload()
    assert "pc1: GPU 1 does not exist; `nvidia-smi -L` lists GPU-a" in refusal(job, SEEN)


def test_the_rendezvous_of_an_ended_run_holds_no_port(project: Project) -> None:
    seen = having(ENDED, STORE, ports=frozenset({PORT}))
    assert (Start, "pc1") in done(decided(planned(project), seen))


@pytest.mark.parametrize(
    ("mount", "where"),
    [
        ("bind: /mine", "/mine, a folder of yours"),
        ("volume: mine", "mine, a volume of yours"),
        ('nfs: "10.0.0.9:/export"', "10.0.0.9:/export, a folder of yours"),
    ],
)
def test_only_kits_own_checkpoints_are_forgotten(project: Project, mount: str, where: str) -> None:
    job = planned(project, f"{JOB}mounts: [{{{mount}, to: /checkpoints}}]\n")
    assert f"keeps its checkpoints in {where}" in refusal(job, SEEN, fresh=True)
    assert decided(job, SEEN)


def test_ports_that_are_listened_on() -> None:
    tables = (
        "  sl  local_address rem_address   st tx_queue\n"
        "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000\n"
        "   1: 0B00500A:7432 0C00500A:0016 01 00000000:00000000 00:00000000\n"
        "  12: 00000000000000000000000000000000:2384 00000000000000000000000000000000:0000 0A 0\n"
    )
    assert ports(tables) == {22, 9092}


INSPECTED: dict[str, Any] = {
    "Id": "f00",
    "Created": "2026-11-21T17:00:00.5Z",
    "RestartCount": 3,
    "State": {
        "Status": "exited",
        "ExitCode": 1,
        "Error": "",
        "FinishedAt": "2026-11-21T17:01:00Z",
        "Health": {"Status": "unhealthy"},
    },
    "Config": {
        "Labels": {
            "com.docker.compose.project": "train-j",
            "com.docker.compose.service": "train",
            "kit.cluster": "lab",
        },
        "Env": ["KIT_NNODES=1:4", "KIT_NPROC=2", "PATH=/bin:/usr/bin"],
    },
    "HostConfig": {
        "RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 10},
        "DeviceRequests": [{"Driver": "nvidia", "Count": 0, "DeviceIDs": ["GPU-b", "GPU-c"]}],
    },
    "Mounts": [
        {"Type": "volume", "Name": "kit-lab_j-checkpoints", "Destination": "/checkpoints"},
        {"Type": "bind", "Source": "/srv", "Destination": "/data"},
    ],
}


def test_a_container_as_docker_describes_it() -> None:
    one = container("pc2", INSPECTED)
    assert (one.job, one.cluster, one.service) == ("j", "lab", "train")
    assert (one.processes, one.dispensable) == (2, 3)
    assert (one.restarts, one.most_restarts, one.healthy) == (3, 10, False)
    assert (one.devices, one.checkpoints) == (("GPU-b", "GPU-c"), "kit-lab_j-checkpoints")
    assert one.ended - one.created == 59.5


@pytest.mark.parametrize(
    ("requests", "visible", "devices"),
    [
        ([{"Count": -1, "DeviceIDs": None}], "", ("all",)),
        (None, "NVIDIA_VISIBLE_DEVICES=void", ()),
        (None, "NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b", ("GPU-a", "GPU-b")),
        (None, "PATH=/bin", ()),
    ],
)
def test_the_gpus_of_a_container(requests: Any, visible: str, devices: tuple[str, ...]) -> None:
    config = {**INSPECTED["Config"], "Env": [visible]}
    limits = {**INSPECTED["HostConfig"], "DeviceRequests": requests}
    one = container("pc2", {**INSPECTED, "Config": config, "HostConfig": limits})
    assert one.devices == devices


@pytest.mark.parametrize(
    ("changes", "state", "message"),
    [
        ({"status": "running"}, State.RUNNING, ""),
        ({"status": "running", "healthy": False}, State.RUNNING, "is not healthy"),
        ({"status": "running", "restarts": 2}, State.RUNNING, "was started again 2 of 10 times"),
        (
            {"status": "running", "restarts": 1, "most_restarts": 0},
            State.RUNNING,
            "was started again 1 time",
        ),
        ({"status": "created"}, State.WAITING, ""),
        ({"status": "created", "error": "no such device"}, State.FAILED, "no such device"),
        (
            {"status": "restarting", "exit_status": 1, "restarts": 3},
            State.WAITING,
            "ended with exit status 1, started again 3 of 10 times",
        ),
        # The launcher's status for what no restart can help, also after a repeated failure.
        (
            {"status": "restarting", "exit_status": 2, "restarts": 3},
            State.FAILED,
            "ended with exit status 2, started again 3 of 10 times",
        ),
        # As Docker's init and runc tell that there is no python3.
        (
            {"status": "restarting", "exit_status": 127, "restarts": 3},
            State.FAILED,
            "the image alpine:3.20 has no python3: build it on an image with Python 3.10",
        ),
        (
            {
                "status": "created",
                "exit_status": 127,
                "error": "failed to create task for container: failed to create shim task: OCI "
                "runtime create failed: runc create failed: unable to start container process: "
                'exec: "python3": executable file not found in $PATH: unknown',
            },
            State.FAILED,
            "the image alpine:3.20 has no python3: build it on an image with Python 3.10",
        ),
        ({"exit_status": 0}, State.COMPLETED, ""),
        ({"exit_status": 143}, State.STOPPED, ""),
        ({"exit_status": 1, "restarts": 10}, State.FAILED, "ended with exit status 1"),
        ({"status": "dead", "exit_status": 137}, State.FAILED, "ended with exit status 137"),
    ],
)
def test_how_a_host_is_doing(changes: dict[str, Any], state: State, message: str) -> None:
    one = replace(ENDED, **changes)
    assert one.state() is state
    assert one.message().startswith(message)
    assert bool(one.message()) is bool(message)


FAILED = {"exit_status": 1, "restarts": 10}


@pytest.mark.parametrize(
    ("first", "second", "dispensable", "state"),
    [
        ({}, {}, 0, State.COMPLETED),
        ({}, {"status": "running"}, 0, State.RUNNING),
        ({"status": "restarting"}, {"status": "running"}, 0, State.RUNNING),
        ({"status": "restarting"}, {"status": "created"}, 0, State.WAITING),
        ({"exit_status": 143}, {}, 0, State.STOPPED),
        (FAILED, {"status": "running"}, 0, State.FAILED),
        (FAILED, {"status": "running"}, 1, State.RUNNING),
        (FAILED, {}, 1, State.COMPLETED),
    ],
)
def test_how_a_job_is_doing(
    first: dict[str, Any], second: dict[str, Any], dispensable: int, state: State
) -> None:
    hosts = [
        replace(ENDED, **first),
        replace(ENDED, id="2", host="pc2", ended=170.0, **second),
    ]
    status = job_status("j", [*hosts, replace(STORE, dispensable=dispensable)], (), Reader())
    assert status.state is state
    assert status.ended == (None if state in {State.RUNNING, State.WAITING} else 170.0)
    assert status.started == 100.0
    assert ("it still runs on pc2" in status.message) is (state is State.FAILED)


def test_a_host_that_is_silent_and_what_the_lines_tell() -> None:
    reader = Reader()
    for event in (
        events.Member(rank=0, local_rank=0, world_size=3),
        events.Saved(checkpoint="step-00000015", epoch=1, step=15),
    ):
        reader.read(LogLine("j", "pc1", event_lines.line(event), 0))
    status = job_status("j", [RUNNING, STORE], [silent_host("pc2", 2)], reader)
    assert status.message == "pc2 cannot be reached"
    assert [(host.host, host.processes, host.ranks) for host in status.hosts] == [
        ("pc1", 1, (0,)),
        ("pc2", 2, ()),
    ]
    assert status.checkpoint == "step-00000015 in kit-lab_j-checkpoints on pc1"
    assert (status.world_size, status.planned) == (3, 3)


def test_a_job_that_has_ended_by_itself_is_stopped_and_not_complete() -> None:
    reader = Reader()
    limit = Limit(key="idle", seconds=1800)
    reader.read(LogLine("j", "pc1", event_lines.line(limit), 0))
    status = job_status("j", [ENDED, STORE], (), reader)
    assert status.state is State.STOPPED
    assert status.message == "ended: it computed nothing for 30 min, its GPUs are free"
    assert [host.state for host in status.hosts] == [State.STOPPED]


def test_a_rendezvous_that_fails_is_told_and_one_alone_is_no_job() -> None:
    store = replace(STORE, status="restarting", exit_status=1, most_restarts=0, restarts=4)
    assert "its coordinator on pc1 ended" in job_status("j", [RUNNING, store], (), Reader()).message
    alone = job_status("j", [STORE], (), Reader())
    assert alone.state is State.FAILED
    assert alone.message == "none of its containers trains: `kit deploy j`, or `kit stop j`"


def test_the_loss_of_the_coordinators_host_is_told() -> None:
    """Under Compose the others wait for it, and the status said that they train."""
    other = replace(RUNNING, id="2", host="pc2")
    said = job_status("j", [other], [silent_host("pc1", 1)], Reader()).message
    assert said.startswith("pc1 cannot be reached; its coordinator is on a host that cannot be")
    store = replace(STORE, host="pc2")
    said = job_status("j", [other, store], [silent_host("pc1", 1)], Reader()).message
    assert said == "pc1 cannot be reached"


def test_a_server_on_a_silent_host_waits_although_others_offer_checkpoints() -> None:
    """It was told as failed, without a training container."""
    offers = replace(STORE, job="serve-d", kind=Kind.SERVER, service=str(Role.CHECKPOINTS))
    status = job_status("serve-d", [offers], [silent_host("pc2", 1)], Reader())
    assert (status.state, status.message) == (State.WAITING, "pc2 cannot be reached")
    alone = job_status("serve-d", [offers], (), Reader())
    assert alone.state is State.FAILED
    assert "answers: `kit deploy serve-d`, or `kit stop serve-d`" in alone.message


def test_workloads_whose_hosts_are_all_silent_are_told() -> None:
    """They were missing: `nothing runs`."""
    devices = {"j": {"pc1": ["A"], "pc2": ["B", "C"]}, "serve-d": {"pc2": ["D"]}, "idle": {}}
    told = silent_statuses(devices, {}, {"pc2"}, 5.0)
    assert list(told) == ["serve-d"]
    assert told["serve-d"].kind is Kind.SERVER
    assert told["serve-d"].state is State.WAITING
    assert "pc2 cannot be reached: it may run there" in told["serve-d"].message
    report = Report("lab", (replace(told["serve-d"], urls=("http://a",)),), (), ())
    assert "answers at" not in " ".join(map(str, show(report)))
    both = silent_statuses(devices, {"j": {"pc2"}}, {"pc1", "pc2"}, 5.0)
    assert [(host.host, host.processes, host.spare) for host in both["j"].hosts] == [
        ("pc1", 1, False),
        ("pc2", 2, True),
    ]


def test_the_monitoring_sees_all_gpus_and_holds_none(project: Project) -> None:
    exporter = replace(RUNNING, job="", service="dcgm-exporter", devices=("all",))
    kinds = [kind for kind, _ in done(decided(planned(project), having(exporter)))]
    assert kinds == [Pull, Pull, Start, Start]
