"""Deploys to Kubernetes without a cluster: decisions, status, and the errors of kubectl."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit.errors import InputError, KitError
from kit.model import Kubernetes
from kit.runtime.status import State
from kit.runtime.steps import Step
from kit.targets.kubernetes.decide import Apply, EndJobs, Prune, Wanted, decide, decide_shared
from kit.targets.kubernetes.errors import KubectlError
from kit.targets.kubernetes.kubectl import Kubectl
from kit.targets.kubernetes.logs import read_pod_log
from kit.targets.kubernetes.observe import observe, resizes
from kit.targets.kubernetes.planned import checkable
from kit.targets.kubernetes.reasons import refused, unplaced
from kit.targets.kubernetes.records import PROGRAM, files_of, reader_of
from kit.targets.kubernetes.state import Namespace, Object, Pod, read_object, read_pod
from kit.targets.kubernetes.status import host_statuses, job_state, pool_statuses
from kit.targets.kubernetes.target import KubernetesTarget
from kit.targets.kubernetes.wait import (
    NotReplacedError,
    NotUpError,
    Seen,
    Watch,
    wait_until_up,
)
from kit.workload.types import Kind, Workload
from tests.sandbox import JOB, SERVER, Project

with warnings.catch_warnings():  # Its own use of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kubernetes_validate

INVENTORY = """\
cluster: lab
engine: kubernetes
kubernetes: {namespace: training}
hosts:
  n1: {address: 10.0.0.1, gpus: 1}
  n2: {address: 10.0.0.2, gpus: 1}
  n3: {address: 10.0.0.3, gpus: [{index: 0, use: inference}]}
"""
STACK = "train-digits"
FILES = {
    STACK: Wanted("new", frozenset({"job/train-digits", "job/train-digits-rendezvous"})),
    "serve-digits": Wanted("new", frozenset({"deployment/serve-digits"})),
}
TRAINS = Object("Job", STACK, STACK, "train", "new", 100.0, replicas=2, most_failed=1)
MEETS = Object("Job", f"{STACK}-rendezvous", STACK, "rendezvous", "new", 100.0)
SET = Object("JobSet", STACK, STACK, "train", "old", 100.0)
MADE = tuple(
    replace(each, name=name, file="old", owner=SET.title)
    for each, name in ((TRAINS, f"{STACK}-node-0"), (MEETS, f"{STACK}-rendezvous-0"))
)
OF_A_SET = {STACK: Wanted("new", frozenset({SET.title}))}
BUDGET = Object("PodDisruptionBudget", STACK, STACK, "train", "old", 100.0)
RUNS = Namespace((TRAINS, MEETS), ())


def pod(node: str, **changes: Any) -> Pod:
    whole = Pod(f"train-digits-{node}", STACK, "train", 0, node, "Running", 100.0, 1)
    return replace(whole, **{"began": True, "answers": True, **changes})


@pytest.fixture
def work(project: Project) -> tuple[Workload, ...]:
    project.write(INVENTORY, {"digits": JOB + "hosts: {min: 1}\n"}, {"digits": SERVER})
    return project.lowered().workloads


def told(steps: tuple[Step, ...]) -> list[str]:
    return [f"{step.what}, {step.cause}" for step in steps]


CASES: dict[str, tuple[Namespace, Mapping[str, Wanted], list[str]]] = {
    "nothing is there": (
        Namespace((), ()),
        FILES,
        ["apply train-digits, it is not deployed"],
    ),
    "it runs": (RUNS, FILES, []),
    "its file has changed": (
        Namespace((replace(TRAINS, file="old"), MEETS), ()),
        FILES,
        [
            "end job/train-digits, its file has changed",
            "end the coordinator of digits, its file has changed",
            "apply train-digits, its file has changed",
        ],
    ),
    "its number of hosts has changed": (
        Namespace((replace(TRAINS, file="old"), replace(MEETS, file="old"), BUDGET), ()),
        {STACK: replace(FILES[STACK], resizes=True)},
        [
            "end the coordinator of digits, its file has changed; its pods continue",
            f"delete {BUDGET.title}, its file does not have them any more",
            "apply train-digits, its file has changed; its pods continue",
        ],
    ),
    "it has ended": (
        Namespace((replace(TRAINS, ended="Complete"),), ()),
        FILES,
        ["end job/train-digits, it has ended", "apply train-digits, it has ended"],
    ),
    "a JobSet has changed": (
        Namespace((*MADE, SET), ()),
        OF_A_SET,
        [
            "end jobset/train-digits, its file has changed",
            "apply train-digits, its file has changed",
        ],
    ),
    "a JobSet has made no Jobs yet": (Namespace((replace(SET, file="new"),), ()), OF_A_SET, []),
    "Jobs of a JobSet that is gone": (
        Namespace(tuple(replace(each, file="new") for each in MADE), ()),
        OF_A_SET,
        ["apply train-digits, jobset/train-digits is missing"],
    ),
    "a Job in place of a JobSet": (
        Namespace(MADE, ()),
        FILES,
        [
            "end jobset/train-digits, its file has changed",
            "apply train-digits, its file has changed",
        ],
    ),
    "the coordinator was removed": (
        Namespace((TRAINS,), ()),
        FILES,
        ["apply train-digits, job/train-digits-rendezvous is missing"],
    ),
    "somebody has changed it": (
        RUNS,
        {STACK: replace(FILES[STACK], by_hand="changed by hand")},
        ["apply train-digits, changed by hand"],
    ),
    "an older file had more": (
        Namespace(
            (replace(TRAINS, file="old"), MEETS, Object("ConfigMap", "old", STACK, "", "", 1.0)), ()
        ),
        FILES,
        [
            "end job/train-digits, its file has changed",
            "end the coordinator of digits, its file has changed",
            "delete configmap/old, its file does not have them any more",
            "apply train-digits, its file has changed",
        ],
    ),
    "a budget is left of an older file": (  # It would keep nodes from being drained.
        Namespace((TRAINS, MEETS, BUDGET, Object("Service", "old", STACK, "", "old", 1.0)), ()),
        FILES,
        [
            f"delete {BUDGET.title}, service/old, its file does not have them any more",
        ],
    ),
    "a budget of another job": (
        Namespace((TRAINS, MEETS, replace(BUDGET, stack="train-other")), ()),
        FILES,
        [],
    ),
    "a controller has made a Service": (
        Namespace((TRAINS, MEETS, Object("Service", STACK, STACK, "", "", 1.0, made=True)), ()),
        FILES,
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_deploy_takes_these_steps(work: tuple[Workload, ...], name: str) -> None:
    found, files, expected = CASES[name]
    assert told(decide(work[:1], found, files, fresh=False)) == expected


SERVES = Object("Deployment", "serve-digits", "serve-digits", "serve", "new", 1.0)
BEFORE = Object("ConfigMap", "serve-digits-old", "serve-digits", "serve", "", 1.0)
NOW = {"fresh": False}
LATE = "its file does not have them any more, when its new pods run"
ROLLOUTS: dict[str, tuple[tuple[Object, ...], list[str]]] = {
    "its file has changed": (
        (replace(SERVES, file="old"), BEFORE),
        [
            "apply serve-digits, its file has changed",
            f"delete configmap/serve-digits-old, {LATE}",
        ],
    ),
    "its new pods do not run yet": ((replace(SERVES, rolls=True), BEFORE), []),
    "its new pods run": (
        (SERVES, BEFORE),
        ["delete configmap/serve-digits-old, its file does not have them any more"],
    ),
    "a Deployment holds the GPUs": (
        (replace(SERVES, name="serve-digits-2gpu", file="old"), BEFORE),
        [
            "apply serve-digits, its file has changed",
            "delete deployment/serve-digits-2gpu, its file does not have them any more",
            f"delete configmap/serve-digits-old, {LATE}",
        ],
    ),
}


@pytest.mark.parametrize("name", ROLLOUTS)
def test_former_pods_of_a_server_keep_what_they_mount(
    work: tuple[Workload, ...], name: str
) -> None:
    there, expected = ROLLOUTS[name]
    steps = decide(work[1:], Namespace(there, ()), FILES, fresh=False)
    assert told(steps) == expected
    late = [isinstance(step, Prune) and step.late for step in steps]
    assert late == [LATE in each for each in expected]


@pytest.mark.parametrize("fails", [False, True])
def test_what_former_pods_need_is_deleted_after_the_rollout(
    project: Project, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Nothing is deleted where the new pods do not start, or where others have deployed since."""
    project.write(INVENTORY, {"digits": JOB}, {"digits": SERVER})
    target, done = KubernetesTarget("lab", project.rendered()), list[str]()
    server = project.lowered().workloads[1]
    changed = decide([server], Namespace((replace(SERVES, file="old"), BEFORE), ()), FILES, **NOW)
    tidy = decide([server], Namespace((SERVES, BEFORE), ()), FILES, **NOW)
    plans = iter([changed, tidy, changed, changed])

    def waits(*_: object) -> None:
        done.append("wait")
        if fails:
            raise NotReplacedError("serve-digits", "is not replaced", (), "")

    place = "kit.targets.kubernetes"
    monkeypatch.setattr(f"{place}.target.rendered_objects", lambda *_: {})
    monkeypatch.setattr(f"{place}.target.planned", lambda *_, **__: next(plans))
    monkeypatch.setattr(f"{place}.target.wait_until_up", waits)
    monkeypatch.setattr(f"{place}.registers.Registers.locked", lambda _: nullcontext())
    monkeypatch.setattr(f"{place}.registers.Registers.history", lambda _: ())
    monkeypatch.setattr(f"{place}.registers.Registers.record_deployment", lambda *_: None)
    monkeypatch.setattr(f"{place}.execute.Executor.execute", lambda _, step: done.append(step.what))

    def deploy() -> None:
        target.deploy([server], fresh=False, say=lambda _: None, agree=lambda _: None)

    if fails:
        with pytest.raises(NotReplacedError):
            deploy()
        assert done == ["apply serve-digits", "wait"]
        return
    deploy()
    assert done == ["apply serve-digits", "wait", "delete configmap/serve-digits-old"]
    done.clear()
    deploy()
    assert done == ["apply serve-digits", "wait"]


SHARED = Object("PodMonitor", "kit-lab-train", "kit-lab", "", "new", 1.0)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ((), ["apply kit-lab, it is not deployed"]),
        ((SHARED,), []),
        ((replace(SHARED, file="old"),), ["apply kit-lab, its file has changed"]),
        (
            (SHARED, replace(SHARED, name="kit-lab-serve")),
            [
                "apply kit-lab, its file has changed",
                "delete podmonitor/kit-lab-serve, its file does not have them any more",
            ],
        ),
    ],
)
def test_what_workloads_share_is_applied_once(
    there: tuple[Object, ...], expected: list[str]
) -> None:
    want = Wanted("new", frozenset({SHARED.title}))
    assert told(tuple(decide_shared("kit-lab", Namespace(there, ()), want))) == expected
    assert tuple(decide_shared("kit-lab", Namespace(there, ()), None)) == ()


def test_a_fresh_start_deletes_the_claim_between_the_job_and_its_successor(
    work: tuple[Workload, ...],
) -> None:
    ended = Namespace((replace(TRAINS, ended="Complete"), MEETS), ())
    assert told(decide(work[:1], ended, FILES, fresh=True)) == [
        "end job/train-digits, --fresh",
        "end the coordinator of digits, --fresh",
        "delete the checkpoints of digits, --fresh",
        "apply train-digits, --fresh",
    ]


def test_a_fresh_start_waits_for_the_job_and_for_its_readers(work: tuple[Workload, ...]) -> None:
    with pytest.raises(KitError, match="digits runs: end it first"):
        decide(work[:1], RUNS, FILES, fresh=True)
    reader = pod("n3", stack="serve-digits", claims=("train-digits-checkpoints",))
    with pytest.raises(KitError, match="serve-digits reads the checkpoints"):
        decide(work[:1], Namespace((), (reader,)), FILES, fresh=True)


def test_a_server_without_a_gpu_is_removed(project: Project) -> None:
    idle = INVENTORY.replace("use: inference", "use: training")
    (_, server) = project.write(idle, servers={"digits": SERVER}).lowered().workloads
    there = Object("Deployment", "serve-digits", "serve-digits", "serve", "new", 1.0)
    steps = decide([server], Namespace((there,), ()), FILES, fresh=False)
    assert told(steps) == ["remove serve-digits, no GPU is given to it"]
    assert decide([server], Namespace((), ()), FILES, fresh=False) == ()


def test_secrets_come_before_the_objects_that_refer_to_them(project: Project) -> None:
    job = JOB + "secrets: {WANDB_API_KEY: env}\n"
    (work, *_) = project.write(INVENTORY, {"digits": job}).lowered().workloads
    steps = decide([work], Namespace((), ()), FILES, fresh=False)
    assert [type(step).__name__ for step in steps] == ["MakeSecret", "Apply"]


GIVEN = {"n1": ("GPU-a",), "n2": ("GPU-b",)}
STATES: dict[str, tuple[tuple[Pod, ...], list[tuple[str, State, str]]]] = {
    "no pods yet": (
        (),
        [
            ("n1", State.WAITING, "Kubernetes has not created a pod for it yet"),
            ("n2", State.WAITING, "Kubernetes has not created a pod for it yet"),
        ],
    ),
    "both run": (
        (pod("n1"), pod("n2")),
        [("n1", State.RUNNING, ""), ("n2", State.RUNNING, "")],
    ),
    "no node is free": (
        (
            pod("n1"),
            pod(
                "",
                phase="Pending",
                code="Unschedulable",
                why="0/2 nodes are available: 2 Insufficient nvidia.com/gpu. no new claims",
            ),
        ),
        [
            ("n1", State.RUNNING, ""),
            ("n2", State.WAITING, "no node takes it: 2 nodes have no free GPU (nvidia.com/gpu)"),
        ],
    ),
    "a node is dead": (
        (pod("n1"), pod("n2", ends=True, lost=True, answers=False)),
        [("n1", State.RUNNING, ""), ("n2", State.WAITING, "its node does not answer")],
    ),
    "no image": (
        (pod("n1", phase="Pending", code="ImagePullBackOff", why="not found"), pod("n2")),
        [
            ("n1", State.WAITING, "the node cannot get the image: not found"),
            ("n2", State.RUNNING, ""),
        ],
    ),
    "a mistake in the job": (
        (pod("n1", phase="Failed", exit_status=2, code="Error"), pod("n2")),
        [("n1", State.FAILED, "it ended with exit status 2"), ("n2", State.RUNNING, "")],
    ),
    "it starts again": (
        (pod("n1", phase="Failed", exit_status=1, code="Error"), pod("n2")),
        [("n1", State.WAITING, "it ended with exit status 1"), ("n2", State.RUNNING, "")],
    ),
    "its container has just ended": (
        (pod("n1", exit_status=2, code="Error", answers=False), pod("n2")),
        [("n1", State.WAITING, "it ended with exit status 2"), ("n2", State.RUNNING, "")],
    ),
    "out of memory": (
        (pod("n1", phase="Failed", exit_status=137, code="OOMKilled"), pod("n2")),
        [
            ("n1", State.WAITING, "its memory exceeded `limits: {memory: …}`"),
            ("n2", State.RUNNING, ""),
        ],
    ),
    "it ends": (
        (pod("n1", ends=True), pod("n2", phase="Succeeded")),
        [
            ("n1", State.STOPPING, "it ends"),
            ("n2", State.COMPLETED, ""),
        ],
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_hosts_have_the_state_of_their_newest_pod(name: str) -> None:
    pods, expected = STATES[name]
    hosts = host_statuses(Namespace((TRAINS,), pods), STACK, GIVEN)
    assert [(host.host, host.state, host.message) for host in hosts] == expected


def test_hosts_have_the_gpus_of_their_pods() -> None:
    """By number from the device plugin, by UUID from a claim."""
    pods = (pod("n1", gpus=2), pod("n2", by_uuid=True))
    hosts = host_statuses(Namespace((TRAINS,), pods), STACK, GIVEN)
    assert [host.devices for host in hosts] == [("0", "1"), ("GPU-b",)]


JOBS: dict[str, tuple[tuple[Object, ...], tuple[Pod, ...], int, State]] = {
    "runs": ((TRAINS,), (pod("n1"),), 1, State.RUNNING),
    "waits": ((TRAINS,), (), 1, State.WAITING),
    "complete": ((replace(TRAINS, ended="Complete"),), (), 2, State.COMPLETED),
    "failed": ((replace(TRAINS, ended="Failed", reason="too often"),), (), 2, State.FAILED),
    "too few are left": (
        (TRAINS,),
        (pod("n1", phase="Failed", exit_status=2),),
        2,
        State.FAILED,
    ),
    "enough are left": (
        (TRAINS,),
        (pod("n1", phase="Failed", exit_status=2), pod("n2")),
        1,
        State.RUNNING,
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_has_the_state_of_its_hosts(name: str) -> None:
    objects, pods, needed, expected = JOBS[name]
    hosts = host_statuses(Namespace(objects, pods), STACK, GIVEN)
    assert job_state(Kind.JOB, objects, hosts, needed)[0] is expected


def test_a_pool_has_a_place_for_each_index() -> None:
    """A dead node's pod has a successor on another one; one pod waits, one is not created yet."""
    pods = (
        pod("n1", index=0),
        pod("n2", index=1, ends=True, lost=True),
        pod("n4", index=1, name="b", created=200.0),
        pod("", index=2, name="c", phase="Pending", code="Unschedulable", why="no"),
    )
    hosts = pool_statuses(Namespace((TRAINS,), pods), STACK, 4)
    assert [(host.host, host.state) for host in hosts] == [
        ("n1", State.RUNNING),
        ("n4", State.RUNNING),
        ("nowhere", State.WAITING),
        ("nowhere", State.WAITING),
    ]


def test_a_server_runs_when_a_pod_of_it_answers() -> None:
    server = Object("Deployment", "serve-digits", "serve-digits", "serve", "new", 1.0)
    assert job_state(Kind.SERVER, (server,), (), 1)[0] is State.WAITING
    assert job_state(Kind.SERVER, (replace(server, ready=1),), (), 1)[0] is State.RUNNING


def test_objects_of_the_api_are_read() -> None:
    labels = {"app.kubernetes.io/instance": STACK, "app.kubernetes.io/component": "train"}
    failed = {
        "type": "Failed",
        "status": "True",
        "message": "an index has failed",
        "lastTransitionTime": "2026-01-01T00:01:00Z",
    }
    meta = {"name": STACK, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    job = read_object(
        {
            "kind": "Job",
            "metadata": meta | {"annotations": {"kit.file": "abc"}},
            "spec": {"completions": 2, "maxFailedIndexes": 1},
            "status": {"conditions": [failed]},
        }
    )
    assert (job.stack, job.component, job.file, job.replicas) == (STACK, "train", "abc", 2)
    assert (job.ended, job.reason, job.most_failed) == ("Failed", "an index has failed", 1)
    ends = {"conditions": [failed | {"type": "SuccessCriteriaMet"}]}
    assert read_object({"kind": "Job", "metadata": meta, "status": ends}).ended == "Complete"
    assert job.ended_at == job.created + 60
    assert not job.made
    owned = meta | {"ownerReferences": [{"kind": "JobSet", "controller": True}]}
    assert read_object({"kind": "Service", "metadata": owned}).made
    one = read_pod(
        {
            "metadata": meta | {"annotations": {"batch.kubernetes.io/job-completion-index": "1"}},
            "spec": {
                "nodeName": "n1",
                "containers": [
                    {
                        "env": [{"name": "KIT_NPROC", "value": "2"}],
                        "resources": {"limits": {"nvidia.com/gpu": "2"}},
                    }
                ],
                "volumes": [{"persistentVolumeClaim": {"claimName": "a"}}, {"emptyDir": {}}],
                "terminationGracePeriodSeconds": 60,
            },
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [
                    {
                        "restartCount": 1,
                        "state": {"running": {}},
                        "lastState": {"terminated": {"exitCode": 143}},
                    }
                ],
            },
        }
    )
    assert (one.index, one.node, one.processes, one.gpus) == (1, "n1", 2, 2)
    assert (one.answers, one.ends, one.restarts, one.exit_status) == (True, False, 1, 143)
    assert (one.claims, one.grace) == (("a",), 60)


Fake = Callable[[str], Kubectl]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts a program in place of kubectl."""

    def make(program: str) -> Kubectl:
        path = tmp_path / "kubectl"
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        settings = Kubernetes("prod", "~/kube", "training", None, None, 1, "ReadWriteMany")
        return Kubectl(settings, Path("compose/lab/rbac.yaml"))

    return make


def test_a_namespace_is_read_with_budgets_and_services(fake: Fake) -> None:
    """Neither is counted as an object that trains."""
    meta = {
        "name": STACK,
        "labels": {"app.kubernetes.io/instance": STACK, "app.kubernetes.io/component": "train"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    kinds = ("PodDisruptionBudget", "Service")
    items = [{"kind": each, "metadata": meta, "spec": {}} for each in kinds]
    answer = shlex.quote(json.dumps({"items": items}))
    asked = "services,poddisruptionbudgets.policy,"
    kubectl = fake(f'case "$*" in *{asked}*part-of=lab*) echo {answer} ;; *) exit 1 ;; esac')
    found = observe(kubectl, "lab")
    assert [each.title for each in found.of(STACK)] == [f"{each.lower()}/{STACK}" for each in kinds]
    assert (found.working(STACK), found.stacks, found.lacks_pods) == ((), {}, False)


def test_every_call_names_the_cluster_and_has_a_time_limit(fake: Fake) -> None:
    words = fake('echo "$@"').run("get", "pods").split()
    assert words[0].endswith("/kube")
    assert words[1:] == [
        "--context=prod",
        "--namespace=training",
        "--request-timeout=15s",
        "get",
        "pods",
    ]


def test_a_cluster_that_does_not_answer_is_an_error(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kit.targets.kubernetes.kubectl.MARGIN", 0)
    with pytest.raises(KitError, match="has not answered `kubectl get`"):
        fake("exec sleep 60").run("get", seconds=0.2)


def test_a_missing_kubectl_is_told(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl = fake("true")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InputError, match="kubectl is not installed"):
        kubectl.run("get")


ERRORS = {
    'error: the server doesn\'t have a resource type "jobsets"': "job_kind: Job}",
    'error: the server doesn\'t have a resource type "podmonitors"': "prometheus_operator: …}` out",
    'no matches for kind "ResourceClaimTemplate" in version "resource.k8s.io/v1"': "device_class",
    'failed calling webhook "mjobset.kb.io": connection refused': "the controller of that webhook",
    'error: context "prod" does not exist': "get-contexts",
    'Error from server (NotFound): namespaces "training" not found': "create namespace training",
    "The connection to the server a:6443 was refused - connection refused": "readyz",
    "Error from server (Forbidden): pods is forbidden: exceeded quota: gpus": "describe quota",
}


@pytest.mark.parametrize("stderr", ERRORS)
def test_errors_of_kubectl_have_a_hint(fake: Fake, stderr: str) -> None:
    with pytest.raises(KubectlError) as caught:
        fake(f"echo {shlex.quote(stderr)} >&2; exit 1").run("get", "pods")
    assert stderr in caught.value.message
    assert ERRORS[stderr] in caught.value.hint


@pytest.mark.parametrize(
    ("said", "early"),
    [
        ('failed calling webhook "mjobset.kb.io": connection refused', True),
        ("the runtime must be created before the TrainJob", True),
        (
            'Error from server (Forbidden): admission webhook "vtrainjob.kb.io" denied '
            "the request: runtime 'train-digits-f6fc74b6' not found",
            True,
        ),
        ('admission webhook "vjob.kb.io" denied the request: queueName: is immutable', False),
        ("Error from server (Forbidden): pods is forbidden: exceeded quota: gpus", False),
    ],
)
def test_an_apply_is_repeated_until_a_webhook_knows_enough(
    fake: Fake, said: str, *, early: bool
) -> None:
    with pytest.raises(KubectlError) as caught:
        fake(f"echo {shlex.quote(said)} >&2; exit 1").run("apply")
    assert caught.value.early is early


FORBIDDEN = """\
Error from server (Forbidden): jobs.batch is forbidden: User "anna" cannot list resource "jobs" in \
API group "batch" in the namespace "training"
Error from server (Forbidden): pods is forbidden: User "anna" cannot list resource "pods" in API \
group "" in the namespace "training"
"""


def test_a_forbidden_verb_is_named_with_the_file_of_the_role(fake: Fake) -> None:
    with pytest.raises(KubectlError) as caught:
        fake(f"printf '%s' '{FORBIDDEN}' >&2; exit 1").run("get", "jobs,pods")
    assert caught.value.message == "anna may not list jobs.batch, pods in the namespace training"
    assert "compose/lab/rbac.yaml has the rights that kit needs" in caught.value.hint


WRONG = ['context "prod" does not exist', 'namespaces "training" not found']


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_cluster_is_a_mistake_in_the_inventory(fake: Fake, said: str) -> None:
    with pytest.raises(KubectlError) as caught:
        fake(f"echo 'error: {said}' >&2; exit 1").run("get")
    assert caught.value.exit_status == 2
    assert "in the inventory" in caught.value.hint


OTHERS = "1 node(s) didn't match Pod's node affinity/selector"
TAINT = "1 node(s) had untolerated taint"
NODE = "no node takes it: 1 node has"
UNPLACED = {
    "pod has unbound immediate PersistentVolumeClaims. not found": "its volume claim gets no vol",
    'persistentvolumeclaim "a" not found': "its volume claim a is not there: deploy its job",
    f"0/2 nodes are available: {OTHERS}, 1 Insufficient cpu. x": f"{NODE} too little free cpu",
    f"0/1 nodes are available: {TAINT} {{node.kubernetes.io/unreachable: }}. preemption: 0/1": (
        f"{NODE} stopped to answer"
    ),
    f"0/2 nodes are available: {TAINT}(s) {{node.kubernetes.io/disk-pressure: }}, 1 node(s) were "
    "unschedulable. x": f"{NODE} too little disk (kubectl describe node); 1 node has been cordoned",
    f"0/2 nodes are available: {OTHERS}, 1 node(s) didn't match pod anti-affinity rules. no": (
        f"{NODE} a pod of it already; compare the hosts with `kubectl get nodes"
    ),
    f"0/1 nodes are available: {TAINT} {{team: blue}}. x": f"{NODE} the taint team",
    f"0/1 nodes are available: {TAINT}(s). x": f"{NODE} a taint (kubectl describe node): it lacks",
    "0/1 nodes are available: 1 something new. x": "no node takes it: 1 something new",
    "waiting for an addon": "no node takes it: waiting for an addon",
}


@pytest.mark.parametrize("said", UNPLACED)
def test_the_scheduler_is_told_in_kits_words(said: str) -> None:
    assert unplaced(said).startswith(UNPLACED[said])


def test_a_job_without_pods_names_the_quota() -> None:
    event = (
        'Error creating: pods "train-digits-0-a" is forbidden: exceeded quota: gpus, requested: '
        "requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=2, limited: "
        "requests.nvidia.com/gpu=2"
    )
    found = Namespace((TRAINS,), (pod("n1"),), {STACK: refused(event)})
    assert found.lacks_pods
    (_, lacks) = host_statuses(found, STACK, GIVEN)
    assert lacks.message.startswith("the quota gpus of the namespace does not suffice: it limits")
    assert refused('Error creating: pods "a" is forbidden: violates PodSecurity') == (
        "violates PodSecurity"
    )


def test_a_job_waits_patiently_in_its_queue() -> None:
    now = [0.0]
    watch = Watch(lambda _: None, lambda: now[0])
    found = Namespace((replace(TRAINS, waits=True),), ())
    hosts = host_statuses(found, STACK, GIVEN)
    assert all("waits in its queue" in host.message for host in hosts)
    assert watch.look("digits", hosts) == []
    now[0] = 600.0
    assert watch.look("digits", hosts) == []


def test_a_server_without_pods_names_the_reason() -> None:
    condition = {"type": "ReplicaFailure", "status": "True", "message": "pods x is forbidden: no"}
    meta = {
        "name": "serve-digits",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {
            "app.kubernetes.io/instance": "serve-digits",
            "app.kubernetes.io/component": "serve",
        },
    }
    server = read_object(
        {"kind": "Deployment", "metadata": meta, "status": {"conditions": [condition]}}
    )
    (host,) = host_statuses(Namespace((server,), ()), "serve-digits", {"n3": ()})
    assert host.message == "no"


def test_lines_without_a_time_are_not_the_containers(fake: Fake) -> None:
    kubectl = fake(
        "echo '2026-01-01T00:00:00.5Z [rank1]: hello'; echo 'unable to retrieve container logs'"
    )
    (line,) = read_pod_log(kubectl, "digits", pod("n1"))
    assert (line.host, line.rank, line.text, line.time) == ("n1", 1, "hello", 1767225600.5)


IMMUTABLE = f"""\
The Job "{STACK}" is invalid: spec.template: Invalid value: {{}}: field is immutable
"""
CONFLICT = """\
error: Apply failed with 1 conflict: conflict with "anna": .spec.parallelism
"""
MODIFIED = f"""\
Error from server (Conflict): Operation cannot be fulfilled on jobs.batch "{STACK}": the object \
has been modified; please apply your changes to the latest version and try again
"""
RUNNING_FILES: tuple[dict[str, Any], ...] = tuple(
    {
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": component}},
    }
    for name, component in ((STACK, "train"), (f"{STACK}-rendezvous", "rendezvous"))
)
OLD = replace(TRAINS, file="old")


@pytest.mark.parametrize(
    ("works", "said", "expected"),
    [
        ((OLD,), "", True),
        ((OLD,), IMMUTABLE, False),
        ((OLD,), CONFLICT, False),
        ((replace(OLD, ended="Complete"),), "", False),
        ((OLD, replace(OLD, name="train-digits-2gpu")), "", False),
        ((SET,), "", False),
        ((replace(OLD, owner=SET.title),), "", False),
        ((), "", False),
    ],
)
def test_kubernetes_says_whether_a_running_job_can_change(
    fake: Fake, works: tuple[Object, ...], said: str, expected: object
) -> None:
    """It is asked without a change, and for the Job that trains only."""
    asked = "*apply*--dry-run=server*"
    only = f"! grep -q {STACK}-rendezvous"
    refuses = f"echo {shlex.quote(said)} >&2; exit 1" if said else ""
    kubectl = fake(f'case "$*" in {asked}) {only} || exit 9; {refuses} ;; *) exit 9 ;; esac')
    assert resizes(kubectl, works, RUNNING_FILES) is expected


def test_a_job_is_not_replaced_because_of_a_passing_error(fake: Fake) -> None:
    with pytest.raises(KubectlError, match="refused"):
        resizes(fake("echo connection refused >&2; exit 1"), (OLD,), RUNNING_FILES)
    with pytest.raises(KubectlError, match="modified"):
        resizes(fake(f"echo {shlex.quote(MODIFIED)} >&2; exit 1"), (OLD,), RUNNING_FILES)


def test_a_dry_run_checks_what_can_be_applied() -> None:
    """Not what stays in the way until a deploy has ended it."""
    ends = Prune("", "", "", (f"job/{STACK}-rendezvous",))
    apply = Apply("", "", "", STACK)
    objects = {STACK: RUNNING_FILES}
    assert list(checkable([ends, apply], objects)) == [[RUNNING_FILES[0]]]
    assert list(checkable([EndJobs("", "", "", STACK, (), 0), apply], objects)) == []


def test_what_others_have_changed_is_told(fake: Fake) -> None:
    said = 'Apply failed with 1 conflict: conflict with "anna" using apps/v1: .spec.replicas'
    with pytest.raises(KubectlError) as caught:
        fake(f"echo 'error: {said}' >&2; exit 1").run("apply")
    assert caught.value.message == "anna has changed .spec.replicas"
    assert "--force-conflicts" in caught.value.hint


def test_a_deploy_ends_when_enough_hosts_run(
    work: tuple[Workload, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kit.targets.kubernetes.wait.STEADY", 0.0)
    looks = iter([((), ()), ((TRAINS,), (pod("n1"), pod("n2")))])

    def look(each: Workload) -> Seen:
        objects, pods = next(looks)
        hosts = host_statuses(Namespace(objects, pods), STACK, GIVEN)
        return Seen(job_state(each.kind, objects, hosts, each.needed)[0], hosts)

    said: list[str] = []
    wait_until_up(work[:1], look, said.append)
    assert said[-2:] == ["digits/n1: running", "digits/n2: running"]


def test_a_mistake_ends_the_wait_at_once(work: tuple[Workload, ...]) -> None:
    pods = (pod("n1", phase="Failed", exit_status=2), pod("n2", phase="Failed", exit_status=2))
    hosts = host_statuses(Namespace((TRAINS,), pods), STACK, GIVEN)
    with pytest.raises(NotUpError, match="n1: it ended with exit status 2") as caught:
        wait_until_up(work[:1], lambda _: Seen(State.WAITING, hosts), lambda _: None)
    assert caught.value.mistake


def test_a_deploy_of_a_server_waits_until_all_its_pods_are_new(
    work: tuple[Workload, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kit.targets.kubernetes.wait.STEADY", 0.0)
    found = Namespace((), (pod("n3", stack="serve-digits", component="serve"),))
    hosts = host_statuses(found, "serve-digits", {"n3": ()})
    looks = [Seen(State.RUNNING, hosts, rolls=True), Seen(State.RUNNING, hosts)]
    wait_until_up(work[1:], lambda _: looks.pop(0), lambda _: None)
    assert looks == []


def test_a_server_whose_new_pods_fail_stays(work: tuple[Workload, ...]) -> None:
    lost = pod("n3", stack="serve-digits", component="serve", phase="Failed", exit_status=2)
    hosts = host_statuses(Namespace((), (lost,)), "serve-digits", {"n3": ()})
    seen = Seen(State.RUNNING, hosts, rolls=True)
    with pytest.raises(NotReplacedError, match="serve-digits is not replaced\n  n3: it ended") as e:
        wait_until_up(work[1:], lambda _: seen, lambda _: None)
    assert "the others answer as before" in e.value.hint


ROLLS = {
    "not seen yet": ({"observedGeneration": 1, "updatedReplicas": 2, "replicas": 2}, True),
    "one is old": ({"observedGeneration": 2, "updatedReplicas": 1, "replicas": 2}, True),
    "one more is old": ({"observedGeneration": 2, "updatedReplicas": 2, "replicas": 3}, True),
    "all are new": ({"observedGeneration": 2, "updatedReplicas": 2, "replicas": 2}, False),
}


@pytest.mark.parametrize("name", ROLLS)
def test_a_deployment_rolls_until_its_pods_are_new(name: str) -> None:
    status, rolls = ROLLS[name]
    meta = {"name": "a", "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z"}
    document = {"kind": "Deployment", "metadata": meta, "spec": {"replicas": 2}, "status": status}
    assert read_object(document).rolls is rolls


def test_a_host_counts_when_it_has_run_for_a_while() -> None:
    now = [0.0]
    watch = Watch(lambda _: None, lambda: now[0])
    (host,) = host_statuses(Namespace((TRAINS,), (pod("n1"),)), STACK, {"n1": ()})
    watch.look("digits", [host])
    assert not watch.steady("digits", host)
    now[0] = 6.0
    watch.look("digits", [host])
    assert watch.steady("digits", host)


def test_a_pod_that_no_node_takes_is_given_a_minute() -> None:
    now = [0.0]
    watch = Watch(lambda _: None, lambda: now[0])
    lost = pod("", phase="Pending", code="Unschedulable", why="0/2 nodes", began=False)
    hosts = host_statuses(Namespace((TRAINS,), (lost,)), STACK, {"n1": ()})
    assert watch.look("digits", hosts) == []
    now[0] = 61.0
    assert watch.look("digits", hosts) == list(hosts)


@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainJob"])
def test_records_are_read_by_a_job_with_the_same_claim(project: Project, kind: str) -> None:
    inventory = INVENTORY.replace("training}", f"training, job_kind: {kind}}}")
    tree = project.write(inventory).rendered()
    file = tree / "kubernetes" / "train-digits.yaml"
    reader = reader_of("lab", list(yaml.safe_load_all(file.read_text())))
    kubernetes_validate.validate(reader, "1.37", strict=True)
    spec = reader["spec"]["template"]["spec"]
    (volume,), (container,) = spec["volumes"], spec["containers"]
    assert volume["persistentVolumeClaim"]["claimName"] == "train-digits-checkpoints"
    assert container["image"] == "registry.lab:5000/trainer:0.2.0"
    # It is none of the job's objects, which `kit deploy` and `kit stop` count.
    assert "app.kubernetes.io/instance" not in reader["metadata"]["labels"]
    assert spec["securityContext"]["runAsNonRoot"] is True


def test_a_job_without_a_claim_has_no_records(project: Project) -> None:
    with pytest.raises(KitError, match="in a volume claim"):
        reader_of("lab", [{"spec": {"containers": [], "volumes": []}}])


def test_what_the_reader_prints_is_read(tmp_path: Path) -> None:
    run = tmp_path / "records" / "20261128-1"
    run.mkdir(parents=True)
    (run / "rank0.jsonl").write_text('{"a": 1}\n' * 10_000)
    (run / "other").write_text("")
    said = printed_of(tmp_path)
    (file,) = files_of(said)
    assert (file.run, file.name, len(file.content)) == ("20261128-1", "rank0.jsonl", 90_000)
    with pytest.raises(KitError, match="came incomplete"):
        files_of(said[100:])
    assert files_of(printed_of(tmp_path / "nowhere")) == ()


def printed_of(checkpoints: Path) -> str:
    """What the program prints in a pod that has this folder."""
    program = PROGRAM.replace("/checkpoints", str(checkpoints))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return done.stdout.decode()
