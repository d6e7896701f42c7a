"""The interface between kit and the trainer: job file, environment, sizes of models."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError

from kit.config import explain
from kit.config.job import JobSection
from kit.config.train import rule_faults
from kit.errors import Fault
from kit.model import EngineName
from kit.paths import Paths
from kit.plan.traffic import PARAMETERS
from kit.project import load_lowered
from kit.targets.local.lower import Places, processes
from kit.workload.training import IMAGE_LAUNCHER
from kit.workload.types import Role
from tests.sandbox import SERVER, Project, document_text
from tests.trainer.hosts import write_job
from tests.trainer.small import noise, settings
from trainer import launcher
from trainer.contract import keys, models, rules
from trainer.contract.job import SECTIONS
from trainer.core.job import JobError, load_job
from trainer.core.models import build_model, parameter_count
from trainer.custom import code as custom_code
from trainer.launcher.main import command as subcommand
from trainer.launcher.settings import Settings, read_job, read_nnodes
from trainer.serve import checkpoints as serve_checkpoints
from trainer.serve import config as serve_config

ROOT = Path(__file__).parents[1]
OWN_SERVER = "own-server"  # The example whose containers run no program of kit.
INVENTORIES = [
    ROOT / "inventory.yaml",
    *sorted(
        path
        for path in ROOT.glob("tests/examples/*/inventory.yaml")
        if path.parent.name != OWN_SERVER
    ),
]
ANYWHERE = [path for path in INVENTORIES if path.parent.name != "shared-pool"]
"""Those that need no queue, which only a Swarm has."""
LOWERED = {
    EngineName.SWARM: INVENTORIES,
    EngineName.KUBERNETES: [path for path in ANYWHERE if path.parent.name == "case4-kubernetes"],
}
"""Those of an engine that takes more or fewer."""
SHAPES = {
    "digits": (1, 8, 10),
    "mnist": (1, 28, 10),
    "fashion_mnist": (1, 28, 10),
    "cifar10": (3, 32, 10),
    "cifar100": (3, 32, 100),
}


@pytest.mark.parametrize(("model", "dataset"), PARAMETERS)
def test_kit_knows_the_models_sizes(model: str, dataset: str) -> None:
    built = build_model(settings(dataset, model), noise(*SHAPES[dataset]))
    assert PARAMETERS[model, dataset] == parameter_count(built)


@pytest.mark.parametrize("inventory", INVENTORIES, ids=lambda path: path.parent.name)
def test_the_launcher_and_the_trainer_read_the_job_files(inventory: Path, tmp_path: Path) -> None:
    lowered = load_lowered(Paths(inventory, None, None, None))
    assert lowered.plan.jobs
    for job in lowered.plan.jobs:
        file = tmp_path / f"{job.name}.json"
        file.write_text(document_text(lowered.workload(job.name)))
        read = read_job(file)
        assert (read.name, read.command) == (job.name, job.job.command)
        if job.job.train is not None:
            training = load_job(file)
            assert training.train == job.job.train
            assert training.exchange == job.job.exchange
            one_volume = lowered.engine is EngineName.KUBERNETES
            assert training.checkpoint.shared is (job.shared_checkpoints or one_volume)
            assert replace(training.checkpoint, shared=False) == job.job.checkpoint
            ports = [
                port.number for part in lowered.workload(job.name).working for port in part.ports
            ]
            assert training.metrics.port == (ports or [0])[0]


@pytest.mark.parametrize("inventory", ANYWHERE, ids=lambda path: path.parent.name)
def test_the_launcher_understands_the_environment(inventory: Path) -> None:
    lowered = load_lowered(Paths(inventory, None, None, None), EngineName.LOCAL)
    here = PurePosixPath("/here")
    places = Places("python3", here / "launch.py", here, here, here, here)
    for job in lowered.plan.jobs:
        work = lowered.workload(job.name)
        assert work.rendezvous is not None
        devices = {placement.host.name: "" for placement in job.placements}
        coordinator, *agents = processes(work, places, devices, cores=2)
        for agent, placement in zip(agents, job.placements, strict=True):
            settings = Settings(dict(agent.variables))
            assert settings.host == placement.host.name
            assert settings.nproc == len(placement.gpus)
            assert settings.rendezvous == (work.rendezvous.address, work.rendezvous.port)
        asked = agents if job.job.command else [coordinator]
        for process in asked:
            assert read_nnodes(dict(process.variables)) == (*job.nodes, 0)


READERS = {
    Role.TRAIN: (launcher, custom_code),
    Role.RENDEZVOUS: (launcher,),
    Role.SERVE: (serve_config,),
    Role.CHECKPOINTS: (serve_checkpoints,),
}


@pytest.mark.parametrize(
    ("engine", "inventory"),
    [
        pytest.param(engine, path, id=f"{engine}-{path.parent.name}")
        for engine in EngineName
        for path in LOWERED.get(engine, ANYWHERE)
    ],
)
def test_containers_get_variables_that_are_read(engine: EngineName, inventory: Path) -> None:
    lowered = load_lowered(Paths(inventory, None, None, None), engine)
    parts = [part for workload in lowered.workloads for part in workload.parts]
    assert parts
    for part in parts:
        documented = "".join(each.__doc__ or "" for each in READERS[part.role])
        known = set(re.findall(r"KIT_\w+", documented))
        named = {each.name for each in part.environment if each.name.startswith("KIT_")}
        assert named
        assert named <= known


@pytest.mark.parametrize("token", ["", "token: {env: TOKEN}\n"])
def test_a_server_understands_its_file(
    project: Project, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = "limits: {body: 1MiB, pixels: 1000}\nbatch: {size: 8, window_ms: 2.5}\nqueue: 9\n"
    limits += "allowed_hosts: [digits.example.com]\n"
    tree = project.write(servers={"digits": f"{SERVER}timeout: 3s\n{limits}{token}"}).rendered()
    monkeypatch.setenv("TOKEN", "hush")
    environ = {**os.environ, "KIT_SERVER": str(tree / "serve" / "digits.json")}
    environ["KIT_CHECKPOINT_SOURCES"] = ",".join(project.lowered().workloads[1].sources)
    settings = serve_config.read_settings(environ)
    assert (settings.name, settings.job, settings.port) == ("serve-digits", "digits", 8080)
    assert (settings.size, settings.window, settings.queue) == (8, 0.0025, 9)
    assert (settings.timeout, settings.body, settings.pixels) == (3, 2**20, 1000)
    assert settings.token == (b"hush" if token else None)
    assert settings.allowed_hosts == {"digits.example.com"}
    assert settings.sources == (("serve-digits-checkpoints", 8081),)


def test_the_rendered_files_start_modules_that_are_there() -> None:
    stacks = ROOT.glob("compose/*/serve-*.stack.yaml")
    for file in [*stacks, *ROOT.glob("compose/*/hosts/*/serve-*.compose.yaml")]:
        if file.parent.name == OWN_SERVER:
            continue
        for service in yaml.safe_load(file.read_text())["services"].values():
            python, option, module = service["entrypoint"]
            assert (python, option) == ("python3", "-m")
            assert module in {"trainer.serve", serve_checkpoints.__name__}


def test_the_image_holds_the_launcher_where_the_files_look_for_it() -> None:
    dockerfile = (ROOT / "trainer" / "Dockerfile").read_text()
    folder = re.search(r"^COPY trainer (\S+)$", dockerfile, re.MULTILINE)
    assert folder is not None
    assert f"{folder[1]}/launch.py" == IMAGE_LAUNCHER


MISTAKES = [
    ("train", "dataset", "cifar"),
    ("train", "dataset", ["cifar10"]),
    ("train", "model", None),
    ("train", "epochs", 0),
    ("train", "epochs", "ten"),
    ("train", "epochs", 2.5),
    ("train", "epochs", True),
    ("train", "epochs", None),
    ("train", "batch_size", -64),
    ("train", "learning_rate", "0.1"),
    ("train", "learning_rate", -1),
    ("train", "learning_rate", float("nan")),
    ("train", "learning_rate", True),
    ("train", "weight_decay", -0.1),
    ("train", "label_smoothing", None),
    ("train", "label_smoothing", 1.0),
    ("train", "clip_norm", -1),
    ("train", "clip_norm", "none"),
    ("train", "warm_up", -1),
    ("train", "warm_up", 2.5),
    ("train", "image_size", 2048),
    ("train", "model", "resnet50"),
    ("train", "model", "torchvision/ResNet50"),
    ("train", "model", "torchvision/"),
    ("train", "model", ["torchvision/resnet50"]),
    ("train", "weights", "IMAGENET1K_V1"),
    ("train", "download", True),
    ("train", "download", "yes"),
    ("train", "augmentation", "rand"),
    ("train", "augmentation", "crops"),
    ("train", "ema", 1),
    ("train", "seed", 2**32),
    ("train", "momentum", 0.9),
    ("train", "epocs", 9),
    ("train", "path", "x"),
    ("train", "flip_at_test", True),
    ("train", "context", 32),
    ("train", "model", "lenet"),
    ("exchange", "mode", "dilco"),
    ("exchange", "overlap", True),
    ("exchange", "every_steps", 4),
    ("exchange", "warm_up_steps", 4),
    ("exchange", "bucket_mib", 2000),
    ("checkpoint", "asynchronous", "yes"),
    ("checkpoint", "keep", 0),
    ("metrics", "port", 80),
    ("metrics", "port", "9500"),
]


@pytest.mark.parametrize(("section", "key", "value"), MISTAKES)
def test_both_answer_a_mistake_in_the_same_words(
    section: str, key: str, value: Any, tmp_path: Path
) -> None:
    file = write_job(tmp_path)
    content = json.loads(file.read_text())
    content[section][key] = value
    file.write_text(json.dumps(content))
    with pytest.raises(JobError) as caught:
        load_job(file)
    fault = refused_by_kit({"image": "trainer", **{each: content[each] for each in WRITTEN}})[0]
    where = ".".join(map(str, fault.loc))
    assert str(caught.value) == f"{file}: {where}: {fault.what}; {fault.fix}"


BY_RECIPE = {
    *("optimizer", "learning_rate", "rate_batch", "rate_limit", "weight_decay", "schedule"),
    *("warm_up", "clip_norm"),
}
"""Keys that a job of a cnn does not write, and its file has."""


def test_a_key_that_nobody_uses_changes_no_job(project: Project) -> None:
    """Nor its version: running jobs are not restarted, and an older trainer can read the file."""
    train = project.write().plan().jobs[0]
    assert train.job.train is not None
    unused = {each.name for each in fields(train.job.train) if each.default is None} - BY_RECIPE
    content = json.loads(document_text(project.workload()))
    assert unused
    assert not unused & content["train"].keys()
    assert train.job_hash == "0e0a7fdbae8c"  # Another value restarts all jobs after an update.


def refused_by_kit(document: dict[str, Any]) -> list[Fault]:
    """The faults of a job as YAML has it."""
    found: list[Fault] = []
    try:
        JobSection.model_validate(document)
    except ValidationError as error:
        found = explain.faults(error, JobSection, "job")
    return [*found, *rule_faults(document, found, "job")]


WRITTEN = [keys.section_name(kind) for kind in SECTIONS]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        (keys.section_name(kind), each.name, value)
        for kind in SECTIONS
        for each in fields(kind)
        if not keys.about(each).planned
        for value in keys.about(each).examples
    ],
    ids=str,
)
def test_a_file_may_have_the_examples_of_a_key(section: str, key: str, value: object) -> None:
    """As YAML has them: their lists are not tuples."""
    needed = {"dataset": "digits", "model": "cnn", "epochs": 1, "batch_size": 8}
    train = needed if section == "train" else {}
    given = {section: {**train, key: json.loads(json.dumps(value))}}
    job = {"image": "trainer:1", "train": needed, **given}
    if (section, key) == ("checkpoint", "files"):
        job = {"image": "trainer:1", "command": ["ddp.py"], **given}
    assert getattr(getattr(JobSection.model_validate(job), section), key) is not None


def test_rules_ask_for_keys_that_exist() -> None:
    """A rule reports nothing without a valid value: with a misspelt key it would never report."""
    values = {
        f"{keys.section_name(kind)}.{each.name}": each.default
        for kind in SECTIONS
        for each in fields(kind)
    }
    choices = {name: get_args(keys.hints(kind)[name.split(".")[1]]) for kind, name in NAMES}
    choices["train.model"] = (*models.OWN, "torchvision/resnet18", "mymodel:build")
    choices["train.dataset"] = (*models.DATASETS, "mymodel:data")
    for dataset, model, mode in product(
        choices["train.dataset"], choices["train.model"], choices["exchange.mode"]
    ):
        for flag in (False, True):
            chosen = {"train.dataset": dataset, "train.model": model, "exchange.mode": mode}
            flags = dict.fromkeys(("exchange.static_graph", "exchange.overlap", "train.ema"), flag)
            for rule in rules.RULES:
                list(rule({**values, **chosen, **flags}, set(values)))


NAMES = [
    (kind, f"{keys.section_name(kind)}.{each.name}") for kind in SECTIONS for each in fields(kind)
]


FITTING = {
    "digits": {"cnn"},
    "mnist": {"cnn", "lenet", "resnet18"},
    "fashion_mnist": {"cnn", "lenet", "resnet18"},
    "cifar10": {"cnn", "lenet", "resnet18", "airbench"},
    "cifar100": {"cnn", "lenet", "resnet18", "airbench"},
    "folder": {"cnn", "lenet", "resnet18", "airbench"},
    "text": {"gpt"},
}


@pytest.mark.parametrize("dataset", FITTING)
@pytest.mark.parametrize("model", sorted(set().union(*FITTING.values())))
@pytest.mark.parametrize("path", ["", "x"])
@pytest.mark.parametrize("image_size", [32, 64])
def test_both_take_the_same_models_for_a_data_set(
    dataset: str, model: str, path: str, image_size: int, tmp_path: Path
) -> None:
    section: dict[str, Any] = {"dataset": dataset, "model": model, "epochs": 1, "batch_size": 1}
    section |= {"path": path} if path else {}
    section |= {"image_size": image_size} if dataset == "folder" else {}
    file = write_job(tmp_path, **section)
    fits = model in FITTING[dataset] and (dataset in {"folder", "text"}) == bool(path)
    fits &= dataset != "folder" or image_size == 32 or model not in {"lenet", "airbench"}
    assert (not refused_by_kit({"image": "trainer", "train": section})) is fits
    assert accepts(load_job, file) is fits


TORCHVISION: dict[str, Any] = {"model": "torchvision/resnet18", "epochs": 1, "batch_size": 1}


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ({"dataset": "digits"}, ""),
        ({"dataset": "cifar100", "weights": "IMAGENET1K_V1", "download": True}, ""),
        ({"dataset": "folder", "path": "x", "image_size": 299, "augmentation": "auto"}, ""),
        ({"dataset": "digits", "weights": "DEFAULT", "download": True}, ""),
        ({"dataset": "digits", "weights": "own.pth", "download": True}, "train.download"),
        ({"dataset": "folder", "path": "x"}, "train.image_size"),
        ({"dataset": "folder", "path": "x", "image_size": 30, "model": "cnn"}, "train.image_size"),
        ({"dataset": "text", "path": "x"}, "train.model"),
        ({"dataset": "digits", "model": "cnn", "weights": "own.pth"}, "train.weights"),
        ({"dataset": "cifar10", "augmentation": "trivial"}, "train.augmentation"),
    ],
)
def test_both_hold_what_is_torchvisions_to_the_same_rules(
    section: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    train = TORCHVISION | section
    found = refused_by_kit({"image": "trainer", "train": train})
    assert [".".join(map(str, each.loc)) for each in found] == ([fault] if fault else [])
    file = write_job(tmp_path, **train)
    if not fault:
        assert load_job(file).train.model == train["model"]
        return
    with pytest.raises(JobError) as caught:
        load_job(file)
    assert str(caught.value) == f"{file}: {fault}: {found[0].what}; {found[0].fix}"


def test_a_model_of_torchvision_may_have_its_parameters_told() -> None:
    train = TORCHVISION | {"dataset": "digits"}
    assert not refused_by_kit({"image": "trainer", "parameters": 11_689_512, "train": train})
    train["model"] = "cnn"
    assert refused_by_kit({"image": "trainer", "parameters": 11_689_512, "train": train})


def test_kit_knows_the_size_of_what_does_not_depend_on_data() -> None:
    known = {(model, data) for data, models in FITTING.items() for model in models}
    assert {pair for pair in known if pair[1] not in models.OWN_DATA} == set(PARAMETERS)


def accepts(read: Callable[[Any], object], what: object) -> bool:
    try:
        read(what)
    except (ValueError, JobError):
        return False
    return True


def test_the_launcher_knows_every_command_of_the_rendered_files() -> None:
    stacks = ROOT.glob("compose/*/train-*.stack.yaml")
    seen = set()
    for file in [*stacks, *ROOT.glob("compose/*/hosts/*/train-*.compose.yaml")]:
        services = yaml.safe_load(file.read_text())["services"]
        for name, service in services.items():
            commands = [service.get("command", [])]
            if "healthcheck" in service:
                commands.append(service["healthcheck"]["test"][3:])
            for command in commands:
                subcommand(command)
                seen.add((name == "rendezvous", tuple(command)))
    # Swarm gives a service its name only once it is healthy: the rendezvous must not be probed.
    helpers = {(True, ("rendezvous",)), (True, ("coordinator",))}
    assert seen == {*helpers, (False, ()), (False, ("health",))}
