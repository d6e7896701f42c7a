"""kit's decisions about a Swarm, from values: without an engine."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import KitError
from kit.hosts.connection import EngineError
from kit.runtime.endings import as_failed
from kit.runtime.status import HostStatus, JobStatus, State
from kit.runtime.steps import Step
from kit.targets.lowered import Lowered
from kit.targets.swarm import registers, wait
from kit.targets.swarm.decide import decide
from kit.targets.swarm.members import steps_down, steps_up, warnings
from kit.targets.swarm.names import network_name
from kit.targets.swarm.pulls import Pulls
from kit.targets.swarm.state import OVER, Cluster, Member, Node, Service, Task
from kit.targets.swarm.status import PULLING, host_statuses, job_state, state_of
from kit.targets.swarm.steps import (
    DeleteCheckpoints,
    DeleteHistory,
    DeployStack,
    Init,
    Join,
    Label,
    Leave,
    MakeSecret,
    Promote,
    RemoveNode,
    RemoveStack,
    RestartTasks,
    SetHeartbeat,
)
from kit.targets.swarm.target import SwarmTarget
from kit.workload.types import Kind
from tests.sandbox import INVENTORY, JOB, Project

FILE = "0123abcd"
VERSIONS = {"platform.stack.yaml": FILE, "train-digits.stack.yaml": FILE}
SEVEN = """\
cluster: lab
engine: swarm
hosts:
  "m[1-3]": {address: "10.0.0.[1-3]", roles: [manager]}
  "w[1-4]": {address: "10.0.1.[1-4]", gpus: 2}
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    return Project(tmp_path_factory.mktemp("pair")).write(INVENTORY, {"digits": JOB}).lowered()


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    return Project(tmp_path_factory.mktemp("seven")).write(SEVEN, {"digits": JOB}).lowered()


def apart(plan: Lowered) -> dict[str, Member]:
    """All hosts, in no swarm."""
    return {
        host.name: Member(
            host, "26.1.5", "inactive", "", "", control=False, managers=(), gpus=offered(host.name)
        )
        for host in plan.plan.hosts
    }


def offered(host: str) -> tuple[str, ...]:
    return {"pc1": ("GPU-a",), "pc2": ("GPU-b", "GPU-c")}.get(host, ())


def node(name: str, *, manager: bool = False, **labels: str) -> Node:
    named = {"kit.host": name, "kit.joined": "lab"} | {
        label.replace("_", "."): value for label, value in labels.items()
    }
    return Node(
        id=f"id-{name}",
        hostname=name,
        host=named["kit.host"] or None,
        manager=manager,
        ready=True,
        availability="active",
        message="",
        labels=tuple(sorted((label, value) for label, value in named.items() if value)),
        gpus=offered(name),
    )


def service(name: str, stack: str = "train-digits", **changes: object) -> Service:
    owner = (("kit.job", stack.removeprefix("train-")),) if stack.startswith("train-") else ()
    made = Service(
        id=name,
        name=f"{stack}_{name}",
        stack=stack,
        labels=(("kit.file", FILE), *owner),
        replicas=1,
        image="registry.lab:5000/trainer:0.2.0@sha256:00",
        gpus=0,
        environment=(),
        secrets=(),
        constraints=(),
        changed=0,
        update="",
        update_message="",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def training(host: str) -> Service:
    variables = (("KIT_NNODES", "2:2"), ("KIT_NPROC", "1"), ("NVIDIA_VISIBLE_DEVICES", "all"))
    label = {"pc1": "train-on-pc1", "pc2": "train-on-pc2"}[host]
    return service(label, gpus=1, environment=variables, constraints=(f"the label of {host}",))


def task(of: str, host: str, state: str, **changes: object) -> Task:
    made = Task(
        id=f"{of}.1",
        service=of,
        stack="train-digits",
        slot=1,
        node=host and f"id-{host}",
        state=state,
        desired="shutdown" if state in OVER else "running",
        message="",
        error="",
        exit_status=None,
        gpus=int(of.startswith("train-")),
        devices=(),
        created=0,
        at=0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def cluster(*tasks: Task, **changes: object) -> Cluster:
    """pc1 and pc2 as the plan wants them, platform and job deployed."""
    made = Cluster(
        id="swarm",
        heartbeat=2,
        nodes=(
            node("pc1", manager=True, kit_job_digits="train-on-pc1"),
            node("pc2", kit_job_digits="train-on-pc2"),
        ),
        services=(
            service("network", "lab-platform"),
            service("rendezvous"),
            training("pc1"),
            training("pc2"),
        ),
        tasks=tasks
        or (task("train-on-pc1", "pc1", "running"), task("train-on-pc2", "pc2", "running")),
        secrets=(),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def joined(members: Mapping[str, Member], seen: Cluster) -> dict[str, Member]:
    nodes = {each.hostname: each for each in seen.nodes}
    return {
        name: replace(member, state="active", node=nodes[name].id, control=nodes[name].manager)
        if name in nodes
        else member
        for name, member in members.items()
    }


def kinds(steps: list[Step]) -> list[type[Step]]:
    return [type(step) for step in steps]


def test_hosts_of_no_swarm_become_one(plan: Lowered) -> None:
    steps = steps_up(plan, apart(plan), None, FILE)
    assert kinds(steps) == [Init, SetHeartbeat, Join, Label, Label, DeployStack]
    assert [step.where for step in steps] == ["pc1", "swarm", "pc2", "pc1", "pc2", "swarm"]
    assert steps[0].cause == "no host of the inventory is a manager yet"
    assert steps[-1].what == "deploy platform.stack.yaml: network lab-training"


def test_the_monitoring_needs_a_secret_once(project: Project) -> None:
    lowered = project.write(INVENTORY + "monitoring: {}\n").lowered()
    steps = steps_up(lowered, apart(lowered), None, FILE, FILE)
    secret, stack = steps[-2:]
    assert (type(secret), type(stack)) == (MakeSecret, DeployStack)
    assert secret.what == "make secret lab-monitoring-GRAFANA_PASSWORD"
    assert stack.what == "deploy monitoring.stack.yaml: Prometheus, Grafana, exporters"
    seen = replace(cluster(), secrets=("lab-monitoring-GRAFANA_PASSWORD",))
    again = steps_up(lowered, joined(apart(lowered), seen), seen, FILE, FILE)
    assert MakeSecret not in kinds(again)


def test_what_is_there_is_left_alone(plan: Lowered) -> None:
    seen = cluster()
    members = joined(apart(plan), seen)
    assert steps_up(plan, members, seen, FILE) == []
    changed = steps_up(plan, members, replace(seen, heartbeat=5), "99999999")
    assert [(type(step), step.cause) for step in changed] == [
        (SetHeartbeat, "it is 5 s"),
        (DeployStack, "its file has changed"),
    ]


def apply(plan: Lowered, seen: Cluster | None, steps: list[Step]) -> Cluster:
    """The state that the managers would observe after the steps."""
    made = seen or Cluster("swarm", 5, (), (), (), ())
    nodes = {each.id: each for each in made.nodes}
    services = list(made.services)
    heartbeat = made.heartbeat
    for step in steps:
        match step:
            case Init() | Join():
                manager = isinstance(step, Init) or step.manager
                new = node(step.host.name, manager=manager, kit_host="")
                nodes[new.id] = new
            case SetHeartbeat():
                heartbeat = step.seconds
            case Promote():
                nodes[step.node] = replace(nodes[step.node], manager=True)
            case RemoveNode():
                del nodes[step.node]
            case Label():
                old = nodes[step.node or f"id-{step.host}"]
                labels = dict(old.labels) | dict(step.labels)
                kept = tuple((name, value) for name, value in labels.items() if value is not None)
                host = dict(kept).get("kit.host")
                nodes[old.id] = replace(old, labels=kept, host=host)
            case DeployStack():
                services = [service("network", f"{plan.cluster}-platform")]
    return replace(made, heartbeat=heartbeat, nodes=tuple(nodes.values()), services=tuple(services))


@given(
    inside=st.sets(st.sampled_from(["m2", "m3", "w1", "w2", "w3", "w4"])),
    workers=st.sets(st.sampled_from(["m2", "m3"])),
    labelled=st.sets(st.sampled_from(["m1", "m2", "w1", "w3"])),
    old=st.booleans(),
    running=st.booleans(),
)
def test_from_anywhere_the_steps_lead_to_where_none_are_left(
    seven: Lowered,
    inside: set[str],
    workers: set[str],
    labelled: set[str],
    *,
    old: bool,
    running: bool,
) -> None:
    members, seen = apart(seven), None
    if running:
        nodes = [
            node(
                name,
                manager=name == "m1" or (name in {"m2", "m3"} and name not in workers),
                kit_host=name if name in labelled else "",
                kit_job_gone="train-2gpu" if name in labelled else "",
            )
            for name in sorted({"m1", *inside})
        ]
        if old:
            nodes.append(replace(node("w4"), id="old-w4", ready=False))
        seen = Cluster("swarm", 5, tuple(nodes), (), (), ())
        members = joined(members, replace(seen, nodes=tuple(n for n in nodes if n.ready)))
    steps = steps_up(seven, members, seen, FILE)
    after = apply(seven, seen, steps)
    assert steps_up(seven, joined(members, after), after, FILE) == []
    assert sum(each.manager for each in after.nodes) == 3
    assert {each.host for each in after.nodes} == {host.name for host in seven.plan.hosts}
    assert not any(name == "kit.job.gone" for each in after.nodes for name, _ in each.labels)


def test_up_takes_away_labels_of_workloads_that_are_gone_but_not_what_deploy_says(
    plan: Lowered,
) -> None:
    pc1, pc2 = cluster().nodes
    gone = (*pc2.labels, ("kit.job.gone", "train-2gpu"), ("kit.job.serve-idle", "none"))
    seen = cluster(nodes=(pc1, replace(pc2, labels=gone)))
    [step] = steps_up(plan, joined(apart(plan), seen), seen, FILE)
    assert isinstance(step, Label)
    assert step.labels == (("kit.job.gone", None),)


def test_hosts_that_cannot_take_part_are_named_all_at_once(plan: Lowered) -> None:
    members = apart(plan)
    members["pc1"] = replace(members["pc1"], version="20.10.24+dfsg1")
    other = replace(members["pc2"], state="active", node="elsewhere", managers=("10.9.9.9:2377",))
    members["pc2"] = other
    with pytest.raises(KitError) as caught:
        steps_up(plan, members, None, FILE)
    old, elsewhere = caught.value.message.splitlines()
    assert old.startswith("pc1: Docker 20.10.24+dfsg1 cannot run tasks that reserve GPUs")
    assert elsewhere.startswith("pc2: is in another swarm already (10.9.9.9:2377)")
    members["pc1"] = replace(members["pc1"], version="25.0.3+dfsg1")
    members["pc2"] = replace(other, state="locked")
    with pytest.raises(KitError, match="pc2: its swarm is locked"):
        steps_up(plan, members, None, FILE)


def test_a_network_with_the_same_addresses_is_told_before_tasks_wait_for_ever(
    plan: Lowered,
) -> None:
    seen = cluster()
    members = joined(apart(plan), seen)
    own = (network_name(plan.plan), "10.200.0.0/16")
    steps_up(plan, members, replace(seen, subnets=(own, ("ingress", "10.0.0.0/24"))), FILE)
    other = ("other-training", "10.200.64.0/20")
    with pytest.raises(KitError, match=r"10\.200\.0\.0/16 is in use by the network other"):
        steps_up(plan, members, replace(seen, subnets=(own, other)), FILE)


def test_gpus_that_are_not_offered_and_an_even_number_of_managers_are_told(plan: Lowered) -> None:
    members = apart(plan)
    members["pc2"] = replace(members["pc2"], gpus=("GPU-b",))
    [said] = warnings(plan.plan, members, None, "compose/lab")
    assert said.startswith("pc2: Docker does not offer 1 GPU of 2 to Swarm (GPU-c for one)")
    assert "kit host prepare pc2 --run, or compose/lab/hosts/pc2/prepare.sh there" in said
    hosts = tuple(replace(host, roles=("manager",)) for host in plan.plan.hosts)
    both = replace(plan, plan=replace(plan.plan, hosts=hosts))
    assert (
        "pc2 stays a worker: 2 managers tolerate no more losses than 1"
        in warnings(both.plan, apart(both), None, "x")[0]
    )
    assert [type(step) for step in steps_up(both, apart(both), None, FILE)].count(Join) == 1


def test_down_takes_away_what_up_has_made(plan: Lowered) -> None:
    seen = cluster(services=(service("network", "lab-platform"),))
    steps = steps_down(plan.plan, joined(apart(plan), seen), seen, remembered=2)
    assert kinds(steps) == [RemoveStack, DeleteHistory, Leave, Leave]
    assert steps[1].what == "forget 2 deployments"
    assert [(step.where, step.last) for step in steps[2:] if isinstance(step, Leave)] == [
        ("pc2", False),
        ("pc1", True),
    ]


def test_down_leaves_what_was_there_before(plan: Lowered) -> None:
    foreign = replace(node("somebody", kit_host="", kit_joined=""), id="id-somebody")
    mine, other = cluster().nodes
    before = replace(other, labels=tuple(pair for pair in other.labels if pair[0] != "kit.joined"))
    seen = cluster(nodes=(mine, before, foreign), services=())
    steps = steps_down(plan.plan, joined(apart(plan), seen), seen, remembered=0)
    # pc1 is the only manager: while others stay, so does it.
    assert kinds(steps) == [Label]
    assert isinstance(steps[0], Label)
    assert dict(steps[0].labels) == {"kit.host": None, "kit.job.digits": None}


def test_down_waits_for_the_jobs(plan: Lowered) -> None:
    seen = cluster()
    with pytest.raises(KitError, match="still deployed: digits") as caught:
        steps_down(plan.plan, joined(apart(plan), seen), seen, remembered=0)
    assert caught.value.hint == "end them: kit stop digits"


def deploy(
    plan: Lowered,
    seen: Cluster,
    version: str = FILE,
    secrets: Mapping[str, str] | None = None,
    *,
    fresh: bool = False,
) -> list[Step]:
    versions = VERSIONS | {"train-digits.stack.yaml": version}
    own, hosts = {"digits": secrets or {}}, {host.name for host in plan.plan.hosts}
    return decide("lab", plan.workloads, seen, versions, own, hosts, fresh=fresh)


def test_a_job_that_runs_from_the_same_file_is_left_alone(plan: Lowered) -> None:
    assert deploy(plan, cluster()) == []


def test_what_was_changed_by_hand_is_deployed_again(plan: Lowered) -> None:
    hand = {"train-digits": "changed by hand: rendezvous is not there", "lab-platform": "other"}
    hosts = {host.name for host in plan.plan.hosts}
    work = plan.workloads
    steps = decide("lab", work, cluster(), VERSIONS, {}, hosts, None, hand, fresh=False)
    assert [(type(step), step.cause) for step in steps] == [
        (DeployStack, hand["lab-platform"]),
        (DeployStack, hand["train-digits"]),
    ]


@pytest.mark.parametrize(
    ("state", "message", "seconds"),
    [
        (State.STOPPED, "", 15),
        (State.WAITING, "no node fits", 15),
        (State.WAITING, f"{PULLING} image", 3700),
        (State.WAITING, "", 3700),  # It may still become healthy.
        (State.RUNNING, "", math.inf),
    ],
)
def test_every_wait_of_a_deploy_ends(
    state: State, message: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deploy waited for ever for a host that somebody had stopped."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = wait.Watch(lambda _: None)
    host = HostStatus("n1", 1, state, None, message=message)

    def stuck(at: float) -> bool:
        now[0] = at
        return bool(watch.look("j", [host]))

    assert next((at for at in (0, 5, 15, 3500, 3700) if stuck(at)), math.inf) == seconds


def test_the_cause_of_a_deploy_is_what_has_changed(plan: Lowered) -> None:
    job = plan.workloads[0]
    own = (("kit.inventory-hash", job.inventory_hash), ("kit.job-hash", job.job_hash))
    bare = cluster().services
    same = tuple(replace(each, labels=(*each.labels, *own)) for each in bare)
    [step] = deploy(plan, cluster(), version="99999999")
    assert step.cause == "jobs/digits.yaml has changed: it continues from its checkpoint"
    [step] = deploy(plan, cluster(services=same), version="99999999")
    assert step.cause.startswith("its file has changed")
    older = tuple(replace(each, labels=(*each.labels, own[1])) for each in bare)
    [step] = deploy(plan, cluster(services=older), version="99999999")
    assert step.cause.startswith("the inventory has changed")


def test_a_job_that_has_ended_begins_anew(plan: Lowered) -> None:
    done = (task("train-on-pc1", "pc1", "complete"), task("train-on-pc2", "pc2", "complete"))
    steps = deploy(plan, cluster(*done))
    assert kinds(steps) == [RemoveStack, DeployStack]
    assert steps[0].cause == "it has completed"
    steps = deploy(plan, cluster(*done), fresh=True)
    assert kinds(steps) == [RemoveStack, DeleteCheckpoints, DeleteCheckpoints, DeployStack]
    with pytest.raises(KitError, match="job digits runs: end it first"):
        deploy(plan, cluster(), fresh=True)


def test_checkpoints_in_a_volume_of_the_users_stay(project: Project) -> None:
    mine = JOB + "mounts: [{volume: mine, to: /checkpoints}]\n"
    lowered = project.write(jobs={"digits": mine}).lowered()
    done = (task("train-on-pc1", "pc1", "complete"), task("train-on-pc2", "pc2", "complete"))
    with pytest.raises(KitError, match="keeps its checkpoints in mine, a volume of yours"):
        deploy(lowered, cluster(*done), fresh=True)


def test_a_new_value_of_a_secret_is_a_deploy(plan: Lowered) -> None:
    steps = deploy(plan, cluster(), secrets={"TOKEN": "beef"})
    assert kinds(steps) == [MakeSecret, DeployStack]
    assert steps[0].what == "make secret train-digits-TOKEN-beef"
    assert isinstance(steps[1], DeployStack)
    assert steps[1].variables == (("KIT_SECRET_TOKEN", "beef"),)
    name = "train-digits-TOKEN-beef"
    used = tuple(replace(each, secrets=(name,)) for each in cluster().services)
    assert deploy(plan, cluster(services=used, secrets=(name,)), secrets={"TOKEN": "beef"}) == []


def test_hosts_that_are_down_or_unknown_are_told_before(plan: Lowered) -> None:
    pc1, pc2 = cluster().nodes
    with pytest.raises(KitError, match="digits: pc2 is down, and it needs 2 hosts"):
        deploy(plan, cluster(nodes=(pc1, replace(pc2, ready=False))))
    with pytest.raises(KitError, match="pc2 is drain"):
        deploy(plan, cluster(nodes=(pc1, replace(pc2, availability="drain"))))
    with pytest.raises(KitError, match="pc2 is not a node of the swarm: kit swarm up"):
        deploy(plan, cluster(nodes=(pc1,)))


def test_who_holds_the_gpus_is_told(plan: Lowered) -> None:
    held = service("holder", "train-other", gpus=2)
    two = task("holder", "pc2", "running", stack="train-other", gpus=2)
    seen = cluster(two, services=(held,))
    with pytest.raises(
        KitError, match="1 GPU wanted, pc2 offers 2 GPUs to Swarm, train-other holds 2"
    ):
        deploy(plan, seen)
    over = cluster(replace(two, state="complete"), services=(held,))
    assert kinds(deploy(plan, over)) == [DeployStack, DeployStack]
    bare = replace(cluster().nodes[1], gpus=())
    with pytest.raises(
        KitError, match=r"pc2 offers 0 GPUs to Swarm: its daemon\.json must list them"
    ):
        deploy(plan, cluster(nodes=(cluster().nodes[0], bare), services=()))


@pytest.mark.parametrize(
    ("constraint", "place", "said"),
    [
        ("node.labels.kit.job.digits == train-on-pc2", "", "kit deploy digits"),
        ("node.labels.kit.job.digits == train-on-pc2", "pc2", "kit deploy digits"),
        ("node.labels.kit.host == pc2", "", "kit swarm up"),
    ],
)
def test_the_command_that_sets_the_missing_label_is_told(
    constraint: str, place: str, said: str
) -> None:
    """As after a split that was interrupted between labels and services."""
    error = "no suitable node (scheduling constraints not satisfied on 2 nodes)"
    waits = replace(task("train-on-pc2", place or "pc2", "pending"), error=error)
    waits = waits if place else replace(waits, node="")
    services = tuple(replace(each, constraints=(constraint,)) for each in cluster().services)
    nodes = tuple(replace(each, labels=()) for each in cluster().nodes)
    found = host_statuses(cluster(waits, services=services, nodes=nodes), "digits")
    assert [host.message.endswith(f": {said}") for host in found if host.message] == [True]


WAITS = {"error": "no suitable node (insufficient resources on 1 node)"}


@pytest.mark.parametrize(
    "before",
    [
        task("train-on-pc2", "pc2", "running", id="before", desired="shutdown"),
        task("service-that-is-gone", "pc2", "running", stack="train-digits", gpus=2),
        task("train-on-pc2", "pc2", "shutdown", id="before"),
    ],
    ids=["of-this-service", "of-a-service-before", "has-just-ended"],
)
def test_a_redeploy_waits_for_its_own_gpus_and_blames_nothing(before: Task) -> None:
    waits = task("train-on-pc2", "pc2", "pending", created=1, **WAITS)
    status = host_statuses(cluster(before, waits), "digits")[1]
    assert status.message == "its GPUs are still being released, 1 GPU of pc2"


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        ("failed", 137, "ended with exit status 137: see kit logs; its restarts are used up"),
        ("shutdown", 143, "was ended with exit status 143; its restarts are used up"),
    ],
)
def test_a_host_whose_restarts_are_used_up_is_started_again(
    plan: Lowered, state: str, code: int, said: str
) -> None:
    out = task("train-on-pc2", "pc2", state, exit_status=code, error=f"non-zero exit ({code})")
    seen = cluster(task("train-1gpu", "pc1", "running"), out)
    assert host_statuses(seen, "digits")[1].message.startswith(said)
    [step] = deploy(plan, seen)
    assert (type(step), step.what) == (RestartTasks, "start digits again on pc2")
    steps = deploy(plan, seen, version="99999999")
    assert kinds(steps) == [DeployStack, RestartTasks]
    following = task("train-on-pc2", "pc2", "ready", id="next", created=1)
    assert deploy(plan, replace(seen, tasks=(*seen.tasks, following))) == []


def test_a_failed_task_that_swarm_may_start_again_has_not_used_up_its_restarts() -> None:
    failed = task("train-on-pc2", "pc2", "failed", exit_status=1, desired="running")
    pc2 = host_statuses(cluster(failed), "digits")[1]
    assert (pc2.state, pc2.message) == (State.WAITING, "ended with exit status 1: see kit logs")


class Registry:
    """A manager's engine whose registry is away, answers, or lacks the image."""

    def __init__(self) -> None:
        self.said = "dial tcp 10.0.0.9:5000: connect: connection refused"

    def get(self, path: str) -> None:
        assert path == "/distribution/registry:5000/trainer:1/json"
        if self.said:
            raise EngineError("pc1", 500, self.said)


def test_a_host_waits_for_a_registry_that_is_away_but_not_for_ever() -> None:
    registry, now = Registry(), [0.0]
    pulls = Pulls(registry, lambda: now[0])  # type: ignore[arg-type]
    lacks = task("train-on-pc2", "pc2", "rejected", error="No such image: registry:5000/trainer:1")
    seen = cluster(
        task("train-on-pc1", "pc1", "running"),
        lacks,
        services=(training("pc1"), replace(training("pc2"), image="registry:5000/trainer:1")),
    )
    said = "pulls registry:5000/trainer:1: its registry does not answer (connection refused)"
    pc2 = pulls.explain(seen, "digits")[1]
    assert (pc2.state, pc2.message) == (State.WAITING, said)
    now[0] = 3600
    pc2 = pulls.explain(seen, "digits")[1]
    assert (pc2.state, pc2.message.partition(":")[0]) == (
        State.FAILED,
        "the host cannot get the image registry",
    )

    registry.said = "manifest unknown"
    pulls = Pulls(registry)  # type: ignore[arg-type]
    assert pulls.explain(seen, "digits")[1].state is State.FAILED


def test_a_run_that_no_restart_can_help_has_failed_and_begins_anew(plan: Lowered) -> None:
    wrong = [
        task(of, host, "failed", id=f"{of}.0", slot=1, exit_status=2, error="non-zero exit (2)")
        for of, host in (("train-on-pc1", "pc1"), ("train-on-pc2", "pc2"))
    ]
    again = [replace(each, id=f"{each.id}-2", state="ready", exit_status=None) for each in wrong]
    seen = cluster(*wrong, *(replace(each, created=1) for each in again))
    assert state_of(seen, "digits") is State.FAILED
    assert kinds(deploy(plan, seen)) == [RemoveStack, DeployStack]


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (127, "task: non-zero exit (127)", "has no python3: build it on an image with Python 3.10"),
        (126, "task: non-zero exit (126)", "has no python3 that may be executed: build it on"),
        (
            None,
            "starting container failed: failed to create shim task: OCI runtime create failed: "
            'runc create failed: unable to start container process: exec: "python3": executable '
            "file not found in $PATH: unknown",
            "has no python3: build it on an image with Python 3.10",
        ),
    ],
)
def test_an_image_without_python_is_told_and_only_its_own_tries_count(
    code: int | None, error: str, said: str
) -> None:
    def tried(number: int, spec: str, **changes: object) -> Task:
        made = task("train-on-pc1", "pc1", "failed", id=f"t{number}", made_of=spec)
        return replace(made, created=number, **changes)  # type: ignore[arg-type]

    before = [tried(number, "before", exit_status=1) for number in range(7)]
    own = tried(8, "now", exit_status=code, error=error)
    waits = replace(own, id="next", state="ready", error="", exit_status=None, created=9)
    services = tuple(replace(each, made_of="now") for each in cluster().services)
    seen = cluster(*before, own, waits, services=services)
    host = host_statuses(seen, "digits")[0]
    assert host.message.startswith(f"the image registry.lab:5000/trainer:0.2.0 {said}")
    assert host.message.endswith("; tried 1 time")
    first = cluster(*before, replace(waits, id="first"), services=services)
    assert host_statuses(first, "digits")[0].message == ""


def test_the_lines_of_a_job_that_was_removed_are_not_of_an_unknown_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = "pc1: the image alpine:3.20 has no python3"
    hosts = tuple(host_statuses(cluster(), "digits"))
    ended = JobStatus("own", Kind.JOB, State.RUNNING, "", 0, None, hosts, None, None)
    monkeypatch.setattr(registers, "recorded_statuses", lambda _: (as_failed(ended, why, 1.0),))
    monkeypatch.setattr(SwarmTarget, "_see", lambda _: cluster())
    monkeypatch.setattr(SwarmTarget, "_docker", lambda _: None)
    target = SwarmTarget.__new__(SwarmTarget)
    with pytest.raises(KitError) as error:
        list(target.logs(["own"], follow=False))
    assert str(error.value).splitlines() == [
        "own has no lines any more: it failed, and its containers were removed",
        f"  {why}",
        "`kit deploy own` starts it again",
    ]
    with pytest.raises(KitError, match="oven is not deployed on this swarm"):
        list(target.logs(["oven"], follow=False))


def test_nodes_that_the_inventory_does_not_name_are_told(plan: Lowered) -> None:
    seen = cluster(nodes=(*cluster().nodes, node("pc9")))
    [said] = warnings(plan.plan, joined(apart(plan), seen), seen, "x")
    assert said.startswith("pc9 is in the Swarm and not in the inventory")
    left = cluster(nodes=(*cluster().nodes, node("somebody", kit_host="", kit_joined="")))
    assert warnings(plan.plan, joined(apart(plan), left), left, "x") == []


@pytest.mark.parametrize(
    ("states", "fewest", "state"),
    [
        (["running", "running"], 2, State.RUNNING),
        (["running", "failed"], 2, State.RUNNING),
        (["pending", "failed"], 2, State.WAITING),
        (["complete", "complete"], 2, State.COMPLETED),
        (["complete", "failed"], 1, State.COMPLETED),
        (["complete", "failed"], 2, State.FAILED),
        (["shutdown", "shutdown"], 1, State.STOPPED),
    ],
)
def test_a_job_is_as_its_hosts_are(states: list[str], fewest: int, state: State) -> None:
    first, second = states
    seen = cluster(task("train-on-pc1", "pc1", first), task("train-on-pc2", "pc2", second))
    assert job_state(host_statuses(seen, "digits"), fewest)[0] is state


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        (
            "rejected",
            "No such image: x",
            "the host cannot get the image registry.lab:5000/trainer:0.2.0",
        ),
        ("rejected", "invalid mount: bind source path does not exist: /srv/x", "the folder /srv/x"),
        (
            "failed",
            "nvidia-container-cli: device error: GPU-zz: unknown device",
            "it has no GPU GPU-zz",
        ),
        ("failed", "task: non-zero exit (3)", "ended with exit status 3: see kit logs"),
        ("pending", "no suitable node (max replicas per node limit exceed)", "max replicas per"),
        ("preparing", "", "pulls registry.lab:5000/trainer:0.2.0"),
    ],
)
def test_why_a_host_does_not_run_is_told_in_words(state: str, error: str, words: str) -> None:
    status = 3 if "exit" in error else None
    ended = task("train-on-pc2", "pc2", state, error=error, exit_status=status)
    seen = cluster(task("train-on-pc1", "pc1", "running"), ended)
    pc2 = host_statuses(seen, "digits")[1]
    assert pc2.message.startswith(words)


def test_a_task_that_starts_again_says_what_ended_it() -> None:
    failed = task("train-on-pc2", "pc2", "failed", error="No such image: x")
    seen = cluster(failed, replace(failed, id="2"), task("train-on-pc2", "pc2", "ready", id="3"))
    pc2 = host_statuses(seen, "digits")[1]
    assert pc2.state is State.WAITING
    assert pc2.message.endswith("; tried 2 times")


def test_a_host_that_is_down_waits_though_its_task_is_said_to_run() -> None:
    pc1, pc2 = cluster().nodes
    seen = cluster(nodes=(pc1, replace(pc2, ready=False)))
    status = host_statuses(seen, "digits")[1]
    assert (status.state, status.message) == (State.WAITING, "the node is down")


def test_a_stack_without_replicas_was_stopped() -> None:
    none = tuple(replace(each, replicas=0) for each in cluster().services)
    assert state_of(cluster(task("x", "", "new"), services=none), "digits") is State.STOPPED


def test_the_monitoring_sees_all_gpus_and_holds_none() -> None:
    seen = cluster(
        task("dcgm-exporter", "pc1", "running", stack="lab-monitoring", devices=("all",)),
        task("another", "pc2", "running", stack="others", devices=("all",)),
        services=(
            service("dcgm-exporter", "lab-monitoring"),
            service("another", "others", labels=()),
        ),
    )
    assert set(seen.holders().values()) == {"others"}
