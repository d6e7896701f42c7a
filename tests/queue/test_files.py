"""The queue in a user's files: what is planned, rendered and refused, and what changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import time

import pytest
import yaml

from kit.commands.submit import renewed
from kit.paths import Paths
from kit.plan.free import free_gpus
from kit.project import load_project
from kit.queue.document import document_of, rules_of
from kit.queue.pool import Wish
from kit.queue.record import Record
from kit.queue.words import labels_of, wish_of
from kit.sharing import ALL_DAY, Hours, Queued
from tests.sandbox import JOB, Project

INVENTORY = """\
cluster: lab
engine: swarm
hosts:
  pc1: {address: 192.168.8.151, roles: [manager], gpus: 1}
  pc2:
    address: 192.168.8.114
    gpus: [{uuid: GPU-b}, {uuid: GPU-c}]
    lend: {weekdays: "19:00-08:00", weekends: all}
  pc3: {address: 192.168.8.115, gpus: 2}
queue: {people: {anna: {share: 2}, ben: {max_gpus: 2}}, half_life: 24h, zone: Europe/Berlin}
"""
QUEUED = f"{JOB}queue: {{owner: anna, priority: 60}}\n"
FIXED = f"{JOB}hosts: {{names: [pc3], gpus_per_host: 1}}\n"
EVENING = Hours("Europe/Berlin", (time(19), time(8)), ALL_DAY)


def test_the_pool_is_what_other_jobs_leave(project: Project) -> None:
    plan = project.write(INVENTORY, {"fixed": FIXED, "a": QUEUED, "b": QUEUED}).plan()
    assert [(host.name, gpus) for host, gpus in plan.pool.hosts] == [
        ("pc1", ("0",)),
        ("pc2", ("GPU-b", "GPU-c")),
        ("pc3", ("1",)),
    ]
    # Both may have all of it.
    for job in plan.jobs[:2]:
        assert [(p.host.name, len(p.gpus)) for p in job.placements] == [
            ("pc1", 1),
            ("pc2", 2),
            ("pc3", 1),
        ]
        assert job.nodes == (1, 3)
    rules = rules_of(json.loads(json.dumps(document_of(plan.pool))))
    assert [hours for *_, hours in rules.hosts] == [None, EVENING, None]
    assert rules.sharing == plan.pool.sharing


def test_the_gpus_of_a_session_belong_to_the_pool_and_those_of_the_queue_are_free_for_it(
    project: Project,
) -> None:
    session = "image: trainer\nsession: {}\nhosts: {gpus: {pc2: [GPU-c]}}\n"
    plan = project.write(INVENTORY, {"fixed": FIXED, "a": QUEUED, "desk": session}).plan()
    assert {host.name: ids for host, ids in plan.pool.hosts}["pc2"] == ("GPU-b", "GPU-c")
    inventory = load_project(Paths(project.folder / "inventory.yaml", None, None, None)).inventory
    free = free_gpus(inventory, plan.jobs)
    assert free == {"pc1": ["0"], "pc2": ["GPU-b"], "pc3": ["1"]}


def test_a_stack_has_all_hosts_and_none_is_on(project: Project) -> None:
    tree = project.write(INVENTORY, {"a": QUEUED, "fixed": FIXED}).rendered()
    text = (tree / "train-a.stack.yaml").read_text()
    assert "# For the queue: anna's, priority 60, at least 1 host." in text
    services = yaml.safe_load(text)["services"]
    assert services.keys() == {"rendezvous", *(f"train-on-pc{number}" for number in (1, 2, 3))}
    assert {service["deploy"]["replicas"] for service in services.values()} == {0}
    labels = services["train-on-pc1"]["deploy"]["labels"]
    assert labels["kit.queue.owner"] == "anna"
    told = services["train-on-pc1"]["environment"]
    assert (told["KIT_OWNER"], told["KIT_PRIORITY"]) == ("anna", "60")
    assert wish_of(labels, frozenset({"pc1"})).least == 1
    assert json.loads((tree / "plan.json").read_text())["queue"]["half_life"] == 24 * 3600
    fixed = (tree / "train-fixed.stack.yaml").read_text()
    assert not [word for word in ("kit.queue", "KIT_OWNER", "KIT_PRIORITY") if word in fixed]


def test_a_queue_changes_no_job_that_is_not_its_own(project: Project) -> None:
    without = INVENTORY.partition("queue:")[0]
    before = project.write(without, {"fixed": FIXED}).rendered() / "train-fixed.stack.yaml"
    text = before.read_text()
    project.write(INVENTORY, {"fixed": FIXED, "a": QUEUED}).rendered()
    assert before.read_text() == text


@pytest.mark.parametrize(
    ("queued", "each", "wish"),
    [
        (Queued("anna", 50, 1, None), None, (1, None, None)),
        (Queued("anna", 50, 2, 4), 1, (2, 4, 1)),
        (Queued("anna", 0, 2, 8, counts_gpus=True), None, (2, 8, 0)),
    ],
)
def test_labels_say_what_a_job_wants(
    queued: Queued, each: int | None, wish: tuple[int, int | None, int | None]
) -> None:
    found = wish_of(dict(labels_of(queued, each)), frozenset({"pc1"}))
    assert (found.least, found.each, found.hosts) == (wish[0], wish[2], frozenset({"pc1"}))
    assert found.most == (wish[1] or found.most)
    assert found.most > 1000 or wish[1]
    assert isinstance(found, Wish)


def test_on_this_machine_a_job_waits_for_nobody(project: Project) -> None:
    inventory = INVENTORY.replace("engine: swarm", "engine: local")
    work = project.write(inventory, {"a": QUEUED}).workload()
    assert work.queue is None
    assert work.begins


def test_a_job_that_is_handed_in_again_has_the_priority_of_its_new_file(project: Project) -> None:
    before = Record("digits", "ben", 10, 1.0, "ben@pc1", began=2.0)
    text = QUEUED.replace("priority: 60", "priority: 70")
    work = project.write(INVENTORY, {"digits": text}).workload()
    assert renewed(before, work) == replace(before, owner="anna", priority=70)


def test_its_jobs_are_handed_in_and_others_are_deployed(project: Project) -> None:
    project.write(INVENTORY, {"a": QUEUED, "fixed": FIXED}).rendered()
    assert "kit submit a" in project.kit("deploy", "a").err
    assert "kit deploy fixed" in project.kit("submit", "fixed").err
