"""The manifests of Kubernetes: valid against the API's schemas, and what the target refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubeflow_trainer_api.models import (
    JobsetV1alpha2JobSet,
    TrainerV1alpha1TrainingRuntime,
    TrainerV1alpha1TrainJob,
)

from kit.targets.kubernetes.objects import literal
from kit.targets.kubernetes.observe import KINDS
from tests.sandbox import COMMAND, JOB, ROOT, SERVER, Project

with warnings.catch_warnings():  # Its own use of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kubernetes_validate

VERSION = "1.37"
MODELS = {
    "JobSet": JobsetV1alpha2JobSet,
    "TrainJob": TrainerV1alpha1TrainJob,
    "TrainingRuntime": TrainerV1alpha1TrainingRuntime,
}
MONITORS = {"PodMonitor", "PrometheusRule"}
"""The kinds of Prometheus Operator. No package has their schemas; the API's hold parts of them."""
Object = dict[str, Any]
INVENTORY = """\
cluster: lab
engine: kubernetes
kubernetes: {namespace: training}
hosts:
  n1: {address: 10.0.0.1, gpus: 2}
  n2: {address: 10.0.0.2, gpus: [{uuid: GPU-a}, {uuid: GPU-b}]}
  n3: {address: 10.0.0.3, gpus: [{index: 0}, {index: 1, use: inference}]}
"""
RENDERED = sorted(path.parent for path in (ROOT / "compose").glob("*/kustomization.yaml"))


def manifests(tree: Path) -> list[Object]:
    """All objects of a tree's workloads and of its monitoring, in the order of its files."""
    files = sorted((tree / "kubernetes").glob("*.yaml"))
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def of_kind(objects: list[Object], kind: str, name: str = "") -> Object:
    """The only object of a kind, or the one of this name."""
    (found,) = [
        each for each in objects if each["kind"] == kind and name in {"", each["metadata"]["name"]}
    ]
    return found


def job_sets(objects: list[Object]) -> Iterator[Object]:
    """The JobSets, also those that a runtime of Kubeflow Trainer describes."""
    for each in objects:
        if each["kind"] == "JobSet":
            yield each
        if each["kind"] == "TrainingRuntime":
            whole = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
            yield {**whole, "metadata": each["metadata"], **each["spec"]["template"]}


def with_their_jobs(objects: list[Object]) -> list[Object]:
    """The objects of the API itself: Jobs in place of what makes them."""
    made = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {**job["template"]["metadata"], "name": job["name"]},
            "spec": job["template"]["spec"],
        }
        for each in job_sets(objects)
        for job in each["spec"]["replicatedJobs"]
    ]
    return [each for each in objects if each["kind"] not in MODELS] + made


def pods(objects: list[Object]) -> Iterator[Object]:
    """The templates of pods."""
    for each in with_their_jobs(objects):
        if template := each["spec"].get("template"):
            yield template


def trains(each: Object) -> bool:
    """Whether an object is a Job of pods that train."""
    return bool(each["kind"] == "Job" and each["spec"].get("completionMode") == "Indexed")


def container(template: Object) -> Object:
    (found,) = template["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment(template: Object) -> dict[str, Any]:
    return {
        each["name"]: each.get("value", each.get("valueFrom"))
        for each in container(template)["env"]
    }


def lost(written: Any, read: Any, at: str = "") -> Iterator[str]:
    """The fields that a model does not know: it leaves them out. Defaults may come to it."""
    if isinstance(written, dict):
        for key, value in written.items():
            if key in read:
                yield from lost(value, read[key], f"{at}.{key}")
            else:
                yield f"{at}.{key}"
    elif isinstance(written, list):
        for number, (value, other) in enumerate(zip(written, read, strict=True)):
            yield from lost(value, other, f"{at}[{number}]")
    elif written != read:
        yield f"{at}: {written} became {read}"


def known_parts(monitor: Object) -> Iterator[Object]:
    """What an object of Prometheus Operator has from the API itself, in objects of the API."""
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor.keys() == {"apiVersion", "kind", "metadata", "spec"}
    policy = {"podSelector": monitor["spec"].get("selector", {}), "policyTypes": ["Ingress"]}
    yield {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": monitor["metadata"],
        "spec": policy,
    }


def hold_to_the_api(objects: list[Object]) -> None:
    """Compare objects with the schemas of the API, which admit no unknown fields."""
    for each in with_their_jobs(objects):
        for known in known_parts(each) if each["kind"] in MONITORS else (each,):
            kubernetes_validate.validate(known, VERSION, strict=True)
    for each in [*(each for each in objects if each["kind"] in MODELS), *job_sets(objects)]:
        read = MODELS[each["kind"]].from_dict(each)
        assert read is not None
        assert [*lost(each, read.to_dict())] == []


@cache
def kubectl() -> str:
    """The path of kubectl, by default the one of the environment of the tests."""
    own = Path(sys.executable).parent
    found = shutil.which("kubectl", path=f"{own}:{os.environ['PATH']}")
    assert found is not None, "make setup .venv/.dev"
    return found


def test_an_example_is_for_kubernetes() -> None:
    assert RENDERED


@pytest.mark.parametrize("tree", RENDERED, ids=lambda tree: tree.name)
def test_the_examples_are_valid(tree: Path) -> None:
    objects = manifests(tree)
    assert {"Job", "Deployment", "Service", "NetworkPolicy"} <= {each["kind"] for each in objects}
    hold_to_the_api(objects)


@pytest.mark.parametrize("tree", RENDERED, ids=lambda tree: tree.name)
def test_kustomize_takes_the_examples(tree: Path) -> None:
    done = subprocess.run(
        [kubectl(), "kustomize", str(tree)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    built = list(yaml.safe_load_all(done.stdout))
    hold_to_the_api(built)
    assert {each["metadata"]["namespace"] for each in built} == {"training"}
    given = {each["metadata"]["name"]: each for each in built if each["kind"] == "ConfigMap"}
    used = {
        volume["configMap"]["name"]
        for template in pods([each for each in built if each["kind"] != "ConfigMap"])
        for volume in template["spec"].get("volumes", ())
        if "configMap" in volume
    }
    assert used == set(given)


def test_the_schemas_notice_a_wrong_field(project: Project) -> None:
    job = of_kind(manifests(project.write(INVENTORY).rendered()), "Job", "train-digits-1gpu")
    job["spec"]["backoffLimitPerindex"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        hold_to_the_api([job])


def test_the_models_notice_a_wrong_field(project: Project) -> None:
    inventory = INVENTORY.replace("training}", "training, job_kind: JobSet}")
    (job_set,) = job_sets(manifests(project.write(inventory).rendered()))
    job_set["spec"]["startUpPolicy"] = {"startupPolicyOrder": "InOrder"}
    with pytest.raises(AssertionError, match="startUpPolicy"):
        hold_to_the_api([job_set])


@pytest.mark.parametrize("place", ["metadata", "selector"])
def test_a_wrong_field_of_a_monitor_is_noticed(project: Project, place: str) -> None:
    inventory = INVENTORY.replace("training}", "training, prometheus_operator: true}")
    objects = manifests(project.write(inventory).rendered())
    hold_to_the_api(objects)
    monitor = of_kind(objects, "PodMonitor")
    (monitor["metadata"] if place == "metadata" else monitor["spec"]["selector"])["label"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        hold_to_the_api([monitor])


def _machines(draw: st.DrawFn, hosts: int) -> Iterator[str]:
    """Hosts with names, or a pool."""
    if draw(st.booleans()):
        yield f"nodes: {{count: {hosts}, gpus: {draw(st.integers(1, 8))}}}"
        return
    yield "hosts:"
    for number in range(hosts):
        gpus: Any = draw(st.integers(1, 4))
        if draw(st.booleans()):
            gpus = [{"uuid": f"GPU-{number}{index}", "model": "A100"} for index in range(gpus)]
        elif serves := draw(st.integers(0, gpus)):
            use = ["inference" if index < serves else "training" for index in range(gpus)]
            gpus = [{"index": index, "use": each} for index, each in enumerate(use)]
        yield f"  n{number}: {{address: 10.0.0.{number + 1}, gpus: {json.dumps(gpus)}}}"


@st.composite
def clusters(draw: st.DrawFn) -> tuple[str, str, str]:
    """Inventories with a job and a server, all of them sound."""
    hosts = draw(st.integers(1, 5))
    lines = ["cluster: lab", "engine: kubernetes"]
    section: dict[str, Any] = {"namespace": draw(st.sampled_from(["training", "team-a"]))}
    choices: dict[str, list[Any]] = {
        "context": ["prod", "arn:aws:eks:eu:1:cluster/a", "kind kind"],
        "image_pull_secret": ["registry-login", "a.b"],
        "storage_class": ["fast", "shared.example.com"],
        "storage_size": ["1GiB", "1.5TiB"],
        "job_kind": ["JobSet", "TrainJob"],
        "device_class": ["gpu.nvidia.com"],
        "prometheus_operator": [True],
        "topology": ["topology.kubernetes.io/zone"],
        "queue": ["team-vision"],
    }
    for key, values in choices.items():
        if draw(st.booleans()):
            section[key] = draw(st.sampled_from(values))
    lines += [f"kubernetes: {json.dumps(section)}", *_machines(draw, hosts)]
    text = draw(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20))
    job: dict[str, Any] = {"environment": {"GREETING": text, "on": "$(HOME) $HOME"}}
    if draw(st.booleans()):
        job["hosts"] = {"min": 1}
    if draw(st.booleans()):
        job["limits"] = {"memory": "24GiB", "cpus": draw(st.sampled_from([0.5, 1, 8]))}
    if draw(st.booleans()):
        job["secrets"] = {"WANDB_API_KEY": "env"}
    if draw(st.booleans()):
        job["mounts"] = [{"volume": "datasets", "to": "/data", "read_only": True}]
    kind = draw(st.sampled_from([JOB, COMMAND + 'user: "1000:1000"\n']))
    return "\n".join(lines), kind + yaml.safe_dump(job), draw(st.sampled_from(["", SERVER]))


def expanded(text: str) -> str:
    """Return what a container gets (kubernetes, third_party/forked/golang/expansion)."""
    found = re.compile(r"\$(\$|\([^)]*\))?")
    return found.sub(lambda match: {None: "$", "$": "$"}.get(match[1], "a variable"), text)


@pytest.mark.parametrize("text", ["p$$w", "$$(HOME)", "$HOME", "$$$", "a$", "$(A)$$(B)", "$("])
def test_values_of_variables_reach_the_container(text: str) -> None:
    assert expanded(literal(text)) == text


def test_words_of_a_command_reach_the_container(project: Project) -> None:
    server = "image: web:1\ncommand: [serve, '$(HOME)', a$$b]\nport: 8080\nuser: '9:9'\n"
    project.write(ONE.replace("gpus: 1", "gpus: [{index: 0, use: inference}]"), {}, {"web": server})
    result = project.kit("render")
    assert result.status == 0, result.err
    objects = manifests(project.folder / "compose" / "lab")
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    words = [*container.get("command", ()), *container.get("args", ())]
    assert [expanded(word) for word in words] == ["serve", "$(HOME)", "a$$b"]


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(files=clusters())
def test_random_clusters_are_valid(project: Project, files: tuple[str, str, str]) -> None:
    inventory, job, server = files
    servers = {"digits": server} if server and "train:" in job else None
    result = project.write(inventory, {"digits": job}, servers).kit("render")
    refused = ("no host", "no GPU", "of a TrainJob are alike")  # All GPUs are for inference, …
    if any(words in result.err for words in refused):
        return
    assert result.status == 0, result.err
    objects = manifests(project.folder / "compose" / "lab")
    hold_to_the_api(objects)
    own = yaml.safe_load(job)["environment"]
    found = environment(next(filter(trains, with_their_jobs(objects)))["spec"]["template"])
    assert expanded(found["GREETING"]) == own["GREETING"]
    assert expanded(found["on"]) == "$(HOME) $HOME"
    hold_to_pod_security(objects)
    hold_to_their_selectors(objects)


def hold_to_pod_security(objects: list[Object]) -> None:
    """The rules of Pod Security “restricted”."""
    for template in pods(objects):
        security, own = template["spec"]["securityContext"], container(template)["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        kinds = {key for volume in template["spec"]["volumes"] for key in volume} - {"name"}
        assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & template["spec"].keys()


def finds(selector: Object, labels: Object) -> bool:
    """Whether a selector chooses a pod with these labels; that of a Service has only labels."""
    terms = selector.get("matchExpressions", ())
    wanted = selector.get("matchLabels", {} if terms else selector)
    assert all(term["operator"] == "In" for term in terms)
    within = all(labels.get(term["key"]) in term["values"] for term in terms)
    return within and wanted.items() <= labels.items()


def hold_to_their_selectors(objects: list[Object]) -> None:
    """Each selector finds pods; no two Deployments find the same; names are unique."""
    labels = [template["metadata"]["labels"] for template in pods(objects)]
    for each in objects:
        chosen = each["spec"].get("selector", each["spec"].get("podSelector"))
        found = [own for own in labels if chosen is not None and finds(chosen, own)]
        waits = each["kind"] in MONITORS  # A server without a GPU has no pods yet.
        assert found or waits or chosen is None, each["metadata"]
        assert len(found) == 1 or each["kind"] != "Deployment"
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)


def test_a_job_is_one_indexed_job_on_its_hosts(project: Project) -> None:
    project.write(INVENTORY, {"digits": JOB + "hosts: {gpus_per_host: 1, min: 2}\n"})
    inventory = INVENTORY.replace("{uuid: GPU-a}, {uuid: GPU-b}", "{index: 0}, {index: 1}")
    objects = manifests(
        project.write(inventory, {"digits": JOB + "hosts: {gpus_per_host: 1, min: 2}\n"}).rendered()
    )
    spec = of_kind(objects, "Job", "train-digits")["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    mistake, lost = spec["podFailurePolicy"]["rules"]
    assert (mistake["action"], mistake["onExitCodes"]["values"]) == ("FailIndex", [2, 126, 127])
    assert (lost["action"], lost["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (spec["podReplacementPolicy"], spec["backoffLimitPerIndex"]) == ("Failed", 10)
    assert (spec["maxFailedIndexes"], spec["successPolicy"]) == (
        1,
        {"rules": [{"succeededCount": 2}]},
    )
    pod = spec["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1", "n2", "n3"]}
    ]
    assert "podAntiAffinity" in pod["affinity"]
    assert {
        each["tolerationSeconds"] for each in pod["tolerations"] if "tolerationSeconds" in each
    } == {10}
    assert container(spec["template"])["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    found = environment(spec["template"])
    assert found["KIT_HOST"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert found["KIT_RENDEZVOUS"] == "train-digits-rendezvous:29400"
    assert "NVIDIA_VISIBLE_DEVICES" not in found
    service = of_kind(objects, "Service", "train-digits-rendezvous")
    assert service["spec"]["ports"][0]["port"] == 29400
    headless = of_kind(objects, "Service", pod["subdomain"])
    assert headless["spec"]["clusterIP"] == "None"


def test_hosts_with_other_numbers_of_gpus_are_jobs_of_their_own(project: Project) -> None:
    objects = manifests(project.write(INVENTORY, {"digits": JOB}).rendered())
    jobs = list(filter(trains, objects))
    assert [(each["metadata"]["name"], each["spec"]["completions"]) for each in jobs] == [
        ("train-digits-2gpu", 2),
        ("train-digits-1gpu", 1),
    ]
    numbers = [environment(each["spec"]["template"])["KIT_NPROC"] for each in jobs]
    assert numbers == ["2", "1"]


def test_the_coordinator_is_a_job_that_sees_no_gpu(project: Project) -> None:
    objects = manifests(project.write(INVENTORY).rendered())
    template = of_kind(objects, "Job", "train-digits-rendezvous")["spec"]["template"]
    # Its container ends with 0 once the run is over, and may run on any node until then.
    assert template["spec"]["restartPolicy"] == "OnFailure"
    assert "affinity" not in template["spec"]
    assert environment(template)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_the_hosts_of_a_job_share_one_folder_of_checkpoints(project: Project) -> None:
    tree = project.write(
        INVENTORY.replace("training}", "training, storage_class: shared}")
    ).rendered()
    objects = manifests(tree)
    claim = of_kind(objects, "PersistentVolumeClaim")
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "shared",
        "resources": {"requests": {"storage": "100Gi"}},
    }
    # Argo CD and Flux delete what is no longer in the tree, except these.
    assert claim["metadata"]["annotations"] == {
        "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
        "kustomize.toolkit.fluxcd.io/prune": "disabled",
    }
    volumes = {
        each["name"]: each
        for each in of_kind(objects, "Job", "train-digits-2gpu")["spec"]["template"]["spec"][
            "volumes"
        ]
    }
    assert volumes["checkpoints"]["persistentVolumeClaim"] == {
        "claimName": "train-digits-checkpoints"
    }
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert json.loads((tree / "jobs" / "digits.json").read_text())["checkpoint"]["shared"] is True


def test_secrets_are_references(project: Project) -> None:
    objects = manifests(
        project.write(INVENTORY, {"digits": JOB + "secrets: {WANDB_API_KEY: env}\n"}).rendered()
    )
    found = environment(of_kind(objects, "Job", "train-digits-1gpu")["spec"]["template"])
    reference = {"secretKeyRef": {"name": "train-digits-secrets", "key": "WANDB_API_KEY"}}
    assert found["WANDB_API_KEY"] == reference
    assert "KIT_SECRETS" not in found


def test_a_server_is_one_address_with_a_budget(project: Project) -> None:
    tree = project.write(INVENTORY, servers={"digits": SERVER}).rendered()
    objects = [each for each in manifests(tree) if "serve" in each["metadata"]["name"]]
    deployment = of_kind(objects, "Deployment")
    probe = container(deployment["spec"]["template"])["readinessProbe"]
    assert probe["httpGet"] == {"path": "/ready", "port": "http"}
    # It answers while nodes still send it requests; 20 s are left for those that it has accepted.
    pod = deployment["spec"]["template"]["spec"]
    assert container({"spec": pod})["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod["terminationGracePeriodSeconds"] == 25
    assert of_kind(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert of_kind(objects, "Service")["spec"]["ports"][0]["port"] == 8080
    claim = next(
        each["persistentVolumeClaim"]
        for each in deployment["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in each
    )
    assert claim == {"claimName": "train-digits-checkpoints", "readOnly": True}
    own = json.loads((tree / "serve" / "digits.json").read_text())
    assert "serve-digits.training.svc" in own["allowed_hosts"]
    plan = json.loads((tree / "plan.json").read_text())
    assert plan["servers"][0]["urls"] == ["http://serve-digits.training.svc:8080"]


def test_a_changed_job_is_another_config_map(project: Project) -> None:
    names = []
    for epochs in ("10", "11"):
        tree = project.write(INVENTORY, {"digits": JOB.replace("10", epochs)}).rendered()
        file = yaml.safe_load((tree / "kustomization.yaml").read_text())
        (made,) = file["configMapGenerator"]
        assert made["files"] == ["job.json=jobs/digits.json"]
        assert made["name"] in (tree / "kubernetes" / "train-digits.yaml").read_text()
        names.append(made["name"])
    assert names[0] != names[1]


def test_a_drain_leaves_the_hosts_that_a_job_needs(project: Project) -> None:
    job = JOB + "hosts: {gpus_per_host: 1, min: 2}\n"
    inventory = INVENTORY.replace("{uuid: GPU-a}, {uuid: GPU-b}", "{index: 0}, {index: 1}")
    objects = manifests(project.write(inventory, {"digits": job}).rendered())
    assert of_kind(objects, "PodDisruptionBudget")["spec"]["minAvailable"] == 2
    alone = manifests(project.write(INVENTORY).rendered())
    # It would keep a node from ever being drained.
    assert "PodDisruptionBudget" not in {each["kind"] for each in alone}


def test_the_hosts_of_a_job_are_close_to_each_other(project: Project) -> None:
    near = "training, topology: topology.kubernetes.io/zone"
    objects = manifests(project.write(POOL.replace("training", near)).rendered())
    hold_to_the_api(objects)
    template = of_kind(objects, "Job", "train-digits")["spec"]["template"]
    (term,) = template["spec"]["affinity"]["podAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    chosen = term["podAffinityTerm"]
    assert chosen["topologyKey"] == "topology.kubernetes.io/zone"
    assert chosen["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    # Kueue chooses the nodes of what it admits: the scheduler's wishes come too late.
    queued = POOL.replace("training", f"{near}, queue: team-vision")
    template = of_kind(manifests(project.write(queued).rendered()), "Job", "train-digits")["spec"][
        "template"
    ]
    assert template["metadata"]["annotations"] == {
        "kueue.x-k8s.io/podset-preferred-topology": "topology.kubernetes.io/zone"
    }
    assert "podAffinity" not in template["spec"]["affinity"]


def test_jobs_wait_in_a_queue_of_kueue(project: Project) -> None:
    section = "training, queue: team-vision, priority_class: research}"
    tree = project.write(INVENTORY.replace("training}", section), servers={"digits": SERVER})
    objects = manifests(tree.rendered())
    hold_to_the_api(objects)
    for each in objects:
        labels = each["metadata"]["labels"]
        found = {name: value for name, value in labels.items() if name.startswith("kueue")}
        queue, priority = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
        assert found == ({queue: "team-vision", priority: "research"} if trains(each) else {})


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob"])
def test_a_job_is_one_object_with_its_coordinator(project: Project, kind: str) -> None:
    inventory = POOL.replace("training}", f"training, job_kind: {kind}, queue: team-vision}}")
    tree = project.write(inventory, {"digits": JOB + "hosts: {min: 2}\n"}).rendered()
    objects = manifests(tree)
    hold_to_the_api(objects)
    kinds = {each["kind"] for each in objects}
    assert kind in kinds
    assert "Job" not in kinds
    whole = of_kind(objects, kind)["metadata"]
    assert whole["labels"]["kueue.x-k8s.io/queue-name"] == "team-vision"
    (job_set,) = job_sets(objects)
    made = {each["name"]: each["template"] for each in job_set["spec"]["replicatedJobs"]}
    assert list(made) == ["rendezvous", "node"]
    for each in made.values():
        assert each["metadata"]["annotations"]["kit.owner"] == f"{kind.lower()}/train-digits"
        assert "kueue.x-k8s.io/queue-name" not in each["metadata"]["labels"]
    assert job_set["spec"]["successPolicy"]["targetReplicatedJobs"] == ["node"]
    hosts = made["node"]["spec"]
    assert (hosts["completions"], hosts["successPolicy"]["rules"]) == (3, [{"succeededCount": 2}])
    meeting = environment(hosts["template"])["KIT_RENDEZVOUS"]
    assert meeting == f"{of_kind(objects, 'Service')['metadata']['name']}:29400"
    if kind == "TrainJob":  # What its webhooks look for.
        assert container(hosts["template"])["name"] == "node"
        step = made["node"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"]
        assert step == "trainer"
        assert of_kind(objects, kind)["spec"]["trainer"]["numNodes"] == 3


def test_a_divided_host_gives_the_gpus_of_the_inventory_by_claims(project: Project) -> None:
    """n1 and n2 are divided by UUID, n3 gives all that it has."""
    inventory = """\
cluster: lab
engine: kubernetes
kubernetes: {namespace: training, device_class: gpu.nvidia.com}
hosts:
  n1: {address: 10.0.0.1, gpus: [{uuid: GPU-a}, {uuid: GPU-b, use: inference}]}
  n2: {address: 10.0.0.2, gpus: [{uuid: GPU-c}, {uuid: GPU-d, use: none}]}
  n3: {address: 10.0.0.3, gpus: 1}
"""
    tree = project.write(inventory, {"digits": JOB}, {"digits": SERVER}).rendered()
    objects = manifests(tree)
    hold_to_the_api(objects)
    claims = {
        each["metadata"]["labels"]["app.kubernetes.io/instance"]: each
        for each in objects
        if each["kind"] == "ResourceClaimTemplate"
    }
    wanted = {"train-digits": "['GPU-a', 'GPU-c']", "serve-digits": "['GPU-b']"}
    for stack, uuids in wanted.items():
        (request,) = claims[stack]["spec"]["spec"]["devices"]["requests"]
        ((chosen,), exactly) = (request["exactly"]["selectors"], request["exactly"])
        assert (exactly["deviceClassName"], exactly["count"]) == ("gpu.nvidia.com", 1)
        expression = chosen["cel"]["expression"]
        assert expression == f"device.attributes['gpu.nvidia.com'].uuid in {uuids}"
    named = of_kind(objects, "Job", "train-digits-1gpu-by-uuid")["spec"]["template"]
    (claim,) = named["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == claims["train-digits"]["metadata"]["name"]
    assert container(named)["resources"] == {"claims": [{"name": claim["name"]}]}
    whole = container(of_kind(objects, "Job", "train-digits-1gpu")["spec"]["template"])
    assert whole["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    rights = (tree / "rbac.yaml").read_text()
    assert "resources: [resourceclaimtemplates]" in rights


POOL = """\
cluster: lab
engine: kubernetes
kubernetes: {namespace: training}
nodes: {count: 3, gpus: 8, product: NVIDIA-H100-80GB-HBM3}
"""


def test_a_pool_of_nodes_is_chosen_by_the_scheduler(project: Project) -> None:
    job = JOB + "hosts: {min: 2}\n"
    objects = manifests(project.write(POOL, {"digits": job}).rendered())
    hold_to_the_api(objects)
    spec = of_kind(objects, "Job", "train-digits")["spec"]
    pod = spec["template"]["spec"]
    assert (spec["completions"], pod["nodeSelector"]) == (
        3,
        {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
    )
    assert list(pod["affinity"]) == ["podAntiAffinity"]
    # A dead node's pod is replaced on another one only with the default podReplacementPolicy.
    assert not {"podFailurePolicy", "podReplacementPolicy"} & spec.keys()
    limits = container(spec["template"])["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8"
    coordinator = of_kind(objects, "Job", "train-digits-rendezvous")["spec"]["template"]["spec"]
    assert not {"nodeSelector", "affinity"} & coordinator.keys()
    parts = (project.folder / "compose" / "lab" / "plan.json").read_text()
    assert '"product": "NVIDIA-H100-80GB-HBM3"' in parts


def test_infiniband_is_a_resource_of_the_nodes(project: Project) -> None:
    resource = "rdma/hca_shared_devices_a"
    inventory = INVENTORY.replace("training}", f"training, rdma: {resource}}}")
    inventory += "network: {infiniband: true}\n"
    objects = manifests(project.write(inventory, servers={"digits": SERVER}).rendered())
    hold_to_the_api(objects)
    for each in (each for each in objects if each["kind"] in {"Job", "Deployment"}):
        one = container(each["spec"]["template"])
        limits = one.get("resources", {}).get("limits", {})
        added = one["securityContext"]["capabilities"].get("add")
        expected = ("1", ["IPC_LOCK"]) if trains(each) else (None, None)
        assert (limits.get(resource), added) == expected


UNCHANGEABLE = {"template", "completionMode", "backoffLimitPerIndex", "successPolicy"}
"""What Kubernetes lets nobody change in a Job, among what kit writes for a pool."""


def test_another_number_of_nodes_leaves_the_template_of_the_job(project: Project) -> None:
    """Kubernetes then changes the running Job, see `resizes`."""
    job = JOB + "hosts: {min: 1}\n"
    specs = []
    for number in (1, 3):
        pool = POOL.replace("count: 3", f"count: {number}")
        objects = manifests(project.write(pool, {"digits": job}).rendered())
        specs.append(of_kind(objects, "Job", "train-digits")["spec"])
    assert [each["completions"] for each in specs] == [1, 3]
    before, after = ({name: each[name] for name in UNCHANGEABLE} for each in specs)
    assert before == after


@pytest.mark.parametrize(
    ("section", "elastic"),
    [
        ("queue: team-vision", "true"),
        ("topology: rack", None),
        ("queue: team-vision, topology: rack", None),  # Kueue does not do both.
        ("queue: team-vision, job_kind: JobSet", None),
    ],
)
def test_kueue_admits_other_numbers_of_pods_while_a_job_runs(
    project: Project, section: str, elastic: str | None
) -> None:
    pool = POOL.replace("training}", f"training, {section}}}")
    kind = "JobSet" if "JobSet" in section else "Job"
    job = of_kind(manifests(project.write(pool).rendered()), kind, "train-digits")
    assert job["metadata"]["annotations"].get("kueue.x-k8s.io/elastic-job") == elastic


def test_the_prometheus_of_the_cluster_finds_all_that_has_metrics(project: Project) -> None:
    inventory = INVENTORY.replace("training}", "training, prometheus_operator: true}")
    own = 'image: a\ncommand: [serve]\nport: 9000\nhealth: /\nuser: "1000:1000"\n'
    own += "hosts: {names: [n2]}\n"
    inventory = inventory.replace("{uuid: GPU-a}, {uuid: GPU-b}", "{index: 0, use: inference}")
    servers = {"digits": SERVER + "hosts: {names: [n3]}\n", "own": own}
    tree = project.write(inventory, {"digits": JOB}, servers).rendered()
    assert "kubernetes/monitoring.yaml" in (tree / "kustomization.yaml").read_text()
    text = (tree / "kubernetes" / "monitoring.yaml").read_text()
    trains, serves, rules = yaml.safe_load_all(text)
    chosen = trains["spec"]["selector"]["matchLabels"]
    job = of_kind(manifests(tree), "Job", "train-digits-1gpu")["spec"]["template"]
    assert chosen.items() <= job["metadata"]["labels"].items()
    (endpoint,) = trains["spec"]["podMetricsEndpoints"]
    # Labels of the samples win: `job` is kit's.
    assert endpoint["honorLabels"] is True
    assert endpoint["port"] in {each["name"] for each in container(job)["ports"]}
    (servers_with_metrics,) = serves["spec"]["selector"]["matchExpressions"]
    assert servers_with_metrics["values"] == ["serve-digits"]
    names = {rule.get("alert") for group in rules["spec"]["groups"] for rule in group["rules"]}
    assert "KitJobFailed" in names
    assert "KitHostGone" not in names  # The cluster has its own exporters of nodes.
    assert "podmonitors, prometheusrules" in (tree / "rbac.yaml").read_text()


WRONG_POOLS = {
    "nodes: {count: 0}": "nodes.count: 0 is out of range",
    "nodes: {count: 2, product: a b}": "nodes.product: 'a b' is not the value of a label",
    "nodes: {count: 2}\nhosts: {n1: {address: n1}}": "nodes: an inventory has hosts or nodes",
    "nodes: {count: 1}\nengine: local": "nodes: engine local needs hosts with names",
    "": "hosts: is missing",
}


@pytest.mark.parametrize("nodes", WRONG_POOLS)
def test_a_wrong_pool_has_its_line(project: Project, nodes: str) -> None:
    engine = "" if "engine" in nodes else "engine: kubernetes\n"
    text = f"cluster: lab\n{engine}kubernetes: {{namespace: a}}\n{nodes}\n"
    result = project.write(text).kit("plan")
    assert (result.status, WRONG_POOLS[nodes] in result.err) == (2, True), result.err


def test_the_rights_of_deployers_are_a_role_of_their_own(project: Project) -> None:
    people = "deployers: {users: [anna], groups: ['oidc:ml team'], service_accounts: [ci]}"
    tree = project.write(INVENTORY.replace("training}", f"training, {people}}}")).rendered()
    role, binding = yaml.safe_load_all((tree / "rbac.yaml").read_text())
    hold_to_the_api([role, binding])
    assert [each["name"] for each in binding["subjects"]] == ["anna", "oidc:ml team", "ci"]
    assert "rbac" not in (tree / "kustomization.yaml").read_text()
    verbs = {
        resource: set(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]
    }
    assert verbs["secrets"] == {"create", "patch", "delete"}  # Their values are never read.
    for each in manifests(tree):
        assert {"get", "create", "patch"} <= verbs[f"{each['kind'].lower()}s".replace("ys", "ies")]
    for resource in (kind.partition(".")[0] for kind in KINDS.split(",")):
        assert {"get", "list"} <= verbs[resource]
        assert resource == "pods" or {"watch", "delete"} <= verbs[resource]  # Of an older file.
    (alone,) = yaml.safe_load_all((project.write(INVENTORY).rendered() / "rbac.yaml").read_text())
    assert alone["kind"] == "Role"


ONE = """\
cluster: lab
engine: kubernetes
kubernetes: {namespace: training}
hosts:
  n1: {address: 10.0.0.1, gpus: 1}
"""
REFUSED = {
    "namespace": (
        ONE.replace("kubernetes: {namespace: training}\n", ""),
        JOB,
        "inventory.yaml:2: engine: .*add `kubernetes",
    ),
    "monitoring": (
        f"{ONE}monitoring: {{}}\n",
        JOB,
        "inventory.yaml:6: monitoring: .*prometheus_operator",
    ),
    "registry": (f"{ONE}registry: {{address: n1:5000, host: n1}}\n", JOB, "registry.host: .*leave"),
    "network": (f"{ONE}network: {{driver: host}}\n", JOB, "network.driver: .*leave it out"),
    "rdma": (ONE.replace("training}", "training, rdma: hca}"), JOB, "rdma: .*name of a resource"),
    "infiniband": (f"{ONE}network: {{infiniband: true}}\n", JOB, "infiniband: .*rdma: rdma/…"),
    "interface": (f"{ONE}network: {{interface: eth0}}\n", JOB, "network.interface: .*leave it out"),
    "own interface": (
        ONE.replace("gpus: 1", "gpus: 1, interface: eth1"),
        JOB,
        "n1.interface: .*leave",
    ),
    "lend": (
        ONE.replace("gpus: 1", "gpus: 1, lend: {to: pool, weekdays: '19:00-08:00'}"),
        JOB,
        "n1.lend: .*leave it out",
    ),
    "a TrainJob of two sizes": (
        ONE.replace("training}", "training, job_kind: TrainJob}")
        + "  n2: {address: n2, gpus: 2}\n",
        JOB,
        "digits.yaml:1: hosts: .*have 1 or 2 GPUs.*gpus_per_host",
    ),
    "a TrainJob of hosts by UUID and whole": (
        ONE.replace("training}", "training, job_kind: TrainJob, device_class: gpu.nvidia.com}")
        + "  n2: {address: b, gpus: [{uuid: GPU-a}, {uuid: GPU-b, use: none}]}\n",
        JOB,
        "digits.yaml:1: hosts: .*by UUID of others.*job_kind: JobSet",
    ),
    "MIG": (ONE.replace("gpus: 1", "gpus: [{uuid: MIG-1}]"), JOB, r"gpus\[0\]: a MIG instance .*"),
    "split by UUID": (
        ONE.replace("gpus: 1", "gpus: [{uuid: GPU-a}, {uuid: GPU-b, use: none}]"),
        JOB,
        "inventory.yaml:5: hosts.n1.gpus: .*by UUID.*write `index:`",
    ),
    "different GPUs": (
        ONE.replace("gpus: 1", "gpus: [{index: 0, model: A100}, {index: 1, model: T4, use: none}]"),
        JOB,
        "hosts.n1.gpus: .*which differ.*give all",
    ),
    "spare": (
        ONE + "  n2: {address: 10.0.0.2, gpus: [{index: 0, use: spare}]}\n",
        JOB,
        "hosts.n2.gpus: .*no spares.*hosts: {min",
    ),
    "named GPUs": (ONE, JOB + "hosts: {gpus: {n1: [0]}}\n", "digits.yaml:7: hosts.gpus: .*names"),
    "data sets": (
        ONE + "  n2: {address: 10.0.0.2, gpus: 1}\n",
        JOB + "data: [cifar10]\n",
        "^(?!.*role).*digits.yaml:7: data: kit starts no data services .*mount a volume claim",
    ),
    "session": (ONE, "image: a\nsession: {}\n", "session: .*engine: swarm"),
    "queue": (ONE, JOB + "queue: {owner: anna}\n", "digits.yaml:7: queue: .*kit deploy"),
    "bind": (ONE, JOB + "mounts: [{bind: /srv, to: /data}]\n", r"mounts\[0\].bind: .*volume claim"),
    "nfs": (ONE, JOB + "mounts: [{nfs: 'a:/b', to: /data}]\n", r"mounts\[0\].nfs: .*volume claim"),
    "image's user": (ONE, COMMAND, "image: .*runs as root; add `user:"),
    "root": (ONE, COMMAND + "user: root\n", "user: .*write its numbers"),
    "user 0": (ONE, COMMAND + 'user: "0:0"\n', "user: .*admits no root"),
    "memlock": (ONE, JOB + "limits: {memlock: unlimited}\n", "limits.memlock: .*leave it out"),
    "access": (
        INVENTORY.replace("training}", "training, storage_access: ReadWriteOnce}"),
        JOB,
        "inventory.yaml:3: kubernetes.storage_access: 3 hosts share .*ReadWriteMany",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_is_refused(project: Project, name: str) -> None:
    inventory, job, message = REFUSED[name]
    result = project.write(inventory, {"digits": job}).kit("render")
    assert result.status == 2
    assert re.search(message, result.err), result.err
    assert not (project.folder / "compose").exists()


def test_a_proxy_is_refused(project: Project) -> None:
    server = SERVER + "proxy: {port: 8081}\n"
    result = project.write(INVENTORY, servers={"digits": server}).kit("render")
    assert result.status == 2
    assert "proxy: kit starts no proxy in Kubernetes; leave it out: the Service" in result.err


def test_long_names_are_refused(project: Project) -> None:
    result = project.write(INVENTORY, {"a" * 46: JOB}).kit("render")
    assert result.status == 2
    assert re.search("too long a name in Kubernetes.*shorten the job's name by", result.err)


EQUAL = {
    "of a coordinator": ("digits", "digits-rendezvous", "Service train-digits-rendezvous"),
    "of a size": ("digits", "digits-2gpu", "Job train-digits-2gpu"),
}


@pytest.mark.parametrize("name", EQUAL)
def test_two_jobs_with_objects_of_one_name_are_refused(project: Project, name: str) -> None:
    """kustomize and the API server take them for one object. A job of one size has other names."""
    one, other, title = EQUAL[name]
    inventory = INVENTORY.replace("{uuid: GPU-a}, {uuid: GPU-b}", "{index: 0}, {index: 1}")
    alone = JOB + "hosts: {names: [n2]}\n"
    jobs = {one: JOB + "hosts: {names: [n1, n3]}\n", other: alone}
    result = project.write(inventory, jobs).kit("render")
    assert result.status == 2
    said = f"jobs/{other}.yaml:1: job {one} \\(jobs/{one}.yaml:1\\) has a {title} .*; rename one"
    assert re.search(said, result.err), result.err
    assert not (project.folder / "compose").exists()
    inventory = inventory.replace("n1: {address: 10.0.0.1, gpus: 2}", "n1: {address: a, gpus: 1}")
    result = project.write(inventory, jobs).kit("render")
    assert result.status == (0 if "2gpu" in other else 2), result.err


def test_two_servers_with_objects_of_one_name_are_refused(project: Project) -> None:
    gpus = "[{index: 0, use: inference}, {index: 1, use: inference}]"
    inventory = INVENTORY.replace("gpus: 2}", f"gpus: {gpus}}}", 1)
    inventory = inventory.replace("[{uuid: GPU-a}, {uuid: GPU-b}]", gpus)
    names = [f"hosts: {{names: {each}}}\n" for each in ("[n1, n3]", "[n2]")]
    servers = {"web": SERVER + names[0], "web-2gpu": SERVER + names[1]}
    train = "  n4: {address: 10.0.0.4, gpus: 1}\n"
    result = project.write(inventory + train, {"digits": JOB}, servers).kit("render")
    assert result.status == 2
    said = "serve/web-2gpu.yaml:1: server serve-web .* has a Deployment serve-web-2gpu"
    assert re.search(said, result.err), result.err


WRONG = {
    "namespace: Training": "is not a DNS label",
    "namespace: a, context: ''": "kubectl config get-contexts",
    "namespace: a, kubeconfig: kube.yaml": "begins with / or ~/",
    "namespace: a, image_pull_secret: A_B": "is not the name of an object",
    "namespace: a, topology: a b": "is not the name of a label",
    "namespace: a, storage_access: RWX": "use one of ReadWriteMany, ReadWriteOnce",
    "context: a": "namespace",
}


@pytest.mark.parametrize("section", WRONG)
def test_mistakes_in_the_section_have_a_line(project: Project, section: str) -> None:
    inventory = INVENTORY.replace("{namespace: training}", f"{{{section}}}")
    result = project.write(inventory).kit("plan")
    assert result.status == 2
    assert re.search(f"inventory.yaml:3: kubernetes.*{re.escape(WRONG[section])}", result.err), (
        result.err
    )
