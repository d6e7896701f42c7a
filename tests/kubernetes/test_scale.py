"""A pool of nodes that grows and shrinks: its job trains on, with other numbers of hosts."""

from __future__ import annotations

import pytest

from tests.kubernetes.cluster import COMPONENT, JOB, Story, inventory, kubectl
from tests.kubernetes.test_kueue import GROUP, queue

pytestmark = pytest.mark.kubernetes


def pool(story: Story, count: int, more: str = "") -> None:
    """Give the job `count` nodes, whichever they are."""
    text, _, _ = inventory(story.namespace, ()).replace("1GiB}", f"1GiB{more}}}").partition("hosts")
    story.project.write(f"{text}nodes: {{count: {count}, gpus: 1}}\n", {"digits": JOB})
    story.kit("render")


def grows_and_shrinks(story: Story, more: str = "") -> None:
    most = len(story.hosts)
    pool(story, 1, more)
    story.kit("deploy", "digits")
    story.await_world(1)
    (first,) = story.objects("pods", "-l", f"{COMPONENT}=train")
    for number in (most, most - 1):
        pool(story, number, more)
        assert "its pods continue" in story.kit("deploy", "digits", "--dry-run").out
        story.kit("deploy", "digits")
        story.await_world(number)
        pods = story.objects("pods", "-l", f"{COMPONENT}=train")
        assert (first in pods, len(pods)) == (True, number)
    print(f"{most} hosts, then {most - 1}: longest time between two steps: {story.gaps():.1f} s")
    story.kit("stop", "digits")


def test_a_pool_grows_and_shrinks_while_its_job_trains(story: Story) -> None:
    grows_and_shrinks(story)


def test_kueue_admits_another_number_while_the_job_trains(story: Story) -> None:
    if f"clusterqueues.{GROUP}" not in kubectl("api-resources", "-o", "name").split():
        pytest.skip("the cluster has no Kueue")
    with queue(story):
        grows_and_shrinks(story, ", queue: pool")
