"""The key `notify`: what the coordinator of a job gets of it, under every engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from kit.model import EngineName
from kit.paths import Paths
from kit.plan.work import Plan
from kit.project import load_lowered
from kit.workload.types import Role
from tests.pages import blocks
from tests.receiver import hook
from tests.sandbox import COMMAND, INVENTORY, JOB, Project
from trainer.contract.notify import KINDS, USUAL
from trainer.launcher.receivers import read_wanted

EVERY = "notify: [{url: https://hooks.lab/kit, key: {env: HOOK_KEY}}]\n"
OWN = "notify: [{url: {file: ~/url}, on: [completed]}, {url: {env: MAIL}, key: {file: ~/key}}]\n"


def receivers(text: str) -> list[dict[str, Any]]:
    wanted = read_wanted(text)
    assert (wanted.job, wanted.cluster) == ("digits", "lab")
    return wanted.receivers


@pytest.mark.parametrize("job", [JOB, COMMAND])
@pytest.mark.parametrize("engine", ["swarm", "compose"])
def test_the_coordinator_alone_gets_the_receivers(project: Project, engine: str, job: str) -> None:
    inventory = INVENTORY.replace("engine: swarm", f"engine: {engine}") + EVERY
    job += "secrets: {TOKEN: env}\n" + OWN
    tree = project.write(inventory, {"digits": job}).rendered()
    [file] = [
        path
        for path in tree.rglob("train-digits.*.yaml")
        if "rendezvous:" in path.read_text() and "pc2" not in path.parts
    ]
    document = yaml.safe_load(file.read_text())
    services = document["services"]
    secrets = ["HOOK_KEY", "NOTIFY_1_URL", "MAIL", "NOTIFY_2_KEY"]
    assert services["rendezvous"]["secrets"] == secrets
    assert receivers(services["rendezvous"]["environment"]["KIT_NOTIFY"]) == [
        {"url": "https://hooks.lab/kit", "on": [*USUAL], "key": "HOOK_KEY"},
        {"secret": "NOTIFY_1_URL", "on": ["completed"]},
        {"secret": "MAIL", "on": [*USUAL], "key": "NOTIFY_2_KEY"},
    ]
    assert set(document["secrets"]) == {*secrets, "TOKEN"}
    trains = [service for name, service in services.items() if name.startswith("train")]
    assert {tuple(each["secrets"]) for each in trains} == {("TOKEN",)}
    assert not any("KIT_NOTIFY" in each["environment"] for each in trains)


def plan_of(project: Project, inventory: str) -> Plan:
    return project.write(inventory).plan()


def test_receivers_of_the_inventory_change_no_job(project: Project) -> None:
    before, after = (plan_of(project, text).jobs[0] for text in (INVENTORY, INVENTORY + EVERY))
    assert (before.job_hash, before.inventory_hash) == (after.job_hash, after.inventory_hash)
    lowered = load_lowered(Paths(project.folder / "inventory.yaml", None, None, None))
    assert [part.role for part in lowered.workloads[0].parts if part.secrets] == [Role.RENDEZVOUS]


def test_a_missing_secret_is_named_before_anything_is_deployed(project: Project) -> None:
    inventory = INVENTORY.replace("engine: swarm", "engine: local") + EVERY
    project.write(inventory).rendered()
    result = project.kit("deploy")
    assert result.status == 2
    assert "job digits: secret HOOK_KEY: the variable is not set here" in result.err


def test_a_receiver_and_the_training_cannot_have_two_secrets_of_a_name(project: Project) -> None:
    job = JOB + "secrets: {HOOK_KEY: {file: ~/key}}\n"
    result = project.write(INVENTORY + EVERY, {"digits": job}).kit("render")
    assert (result.status, result.err) == (
        2,
        "inventory.yaml:15: notify[0].key: job digits has another secret HOOK_KEY; "
        "rename one of the two\n",
    )
    job = JOB + "secrets: {HOOK_KEY: env}\n"
    assert project.write(INVENTORY + EVERY, {"digits": job}).kit("render").status == 0


def test_receivers_are_tried_from_this_machine(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_KEY", "a key")
    with hook() as good, hook(404) as wrong:
        text = f"notify: [{{url: {good.url}, key: {{env: HOOK_KEY}}, on: [failed]}}"
        result = project.write(INVENTORY + text + "]\n").kit("notify", "digits")
        assert (result.status, result.err) == (0, "")
        assert f"{good.url}/… is notified: test\n" in result.out
        assert "webhook-signature" in good.posted[0].headers
        project.write(INVENTORY + f"{text}, {{url: {wrong.url}}}]\n")
        result = project.kit("notify", "digits")
        assert result.status == 1
        assert result.err == f"{wrong.url}/… is not notified of test: it answers 404\n"
    assert good.kinds == ["test", "test"]
    assert project.write().kit("notify", "digits").err.startswith("kit: job digits notifies nobody")


def test_the_examples_of_the_page_are_accepted(project: Project) -> None:
    every, own, api = blocks("docs/how-to/notify.md", "yaml")
    for inventory, job in ((INVENTORY + every, JOB + own), (INVENTORY + api, JOB)):
        result = project.write(inventory, {"digits": job}).kit("render")
        assert (result.status, result.err) == (0, "")
    [body] = blocks("docs/how-to/notify.md", "json")
    assert json.loads(body)["kind"] in KINDS


def test_the_local_coordinator_finds_its_secrets_in_variables(project: Project) -> None:
    paths = Paths(project.write(INVENTORY + EVERY).folder / "inventory.yaml", None, None, None)
    part = load_lowered(paths, EngineName.LOCAL).workloads[0].parts[0]
    assert part.role is Role.RENDEZVOUS
    variables = {each.name: str(each.value) for each in part.environment}
    [receiver] = receivers(variables["KIT_NOTIFY"])
    assert receiver["key"] == "HOOK_KEY"
