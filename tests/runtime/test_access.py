"""Which container `kit shell` enters, and its refusals."""

from __future__ import annotations

import pytest

from kit.errors import InputError, KitError
from kit.runtime.access import Access, chosen_host
from kit.runtime.status import HostStatus, JobStatus, State
from kit.workload.types import Kind


def job(state: State = State.RUNNING, **ranks: tuple[int, ...] | None) -> JobStatus:
    """A job on hosts with these ranks; None: the host is lost."""
    hosts = tuple(
        HostStatus(name, 1, State.FAILED if own is None else State.RUNNING, None, ranks=own or ())
        for name, own in ranks.items()
    )
    return JobStatus("own", Kind.JOB, state, "", 0.0, None, hosts, None, None)


def test_the_default_is_the_host_of_rank_0_as_the_ranks_are_now() -> None:
    status = [job(pc1=(1,), pc2=(0,), pc3=())]
    assert chosen_host(status, "own", None, None).host == "pc2"
    assert chosen_host(status, "own", "pc3", None).host == "pc3"
    assert chosen_host(status, "own", None, 1).host == "pc1"
    assert chosen_host([job(pc1=None, pc2=())], "own", None, None).host == "pc2"


@pytest.mark.parametrize(
    ("statuses", "name", "host", "rank", "kind", "said"),
    [
        ([], "own", None, None, InputError, "nothing is deployed: `kit deploy`"),
        ([job(pc1=(0,))], "owm", None, None, InputError, "did you mean own"),
        ([job(pc1=(0,))], "own", "pc2", None, InputError, "own is not on pc2"),
        ([job(pc1=(0,))], "own", None, 1, InputError, "its ranks are 0 to 0"),
        ([job(pc1=())], "own", None, 0, InputError, "no rank has reported itself"),
        ([job(pc1=None)], "own", "pc1", None, KitError, "own does not run on pc1 now"),
        ([job(State.COMPLETED, pc1=(0,))], "own", None, None, KitError, "`kit deploy own`"),
    ],
)
def test_refusals(
    statuses: list[JobStatus],
    name: str,
    host: str | None,
    rank: int | None,
    kind: type[KitError],
    said: str,
) -> None:
    with pytest.raises(kind) as error:
        chosen_host(statuses, name, host, rank)
    assert said in str(error.value)


def test_a_terminal_is_passed_on() -> None:
    access = Access(("docker", "--host", "ssh://pc1"), "4f2")
    there = ["docker", "--host", "ssh://pc1", "exec", "-i"]
    assert access.command(["sh"], terminal=False) == [*there, "4f2", "sh"]
    assert access.command(["sh"], terminal=True) == [*there, "-t", "4f2", "sh"]
    assert Access().command(["sh"], terminal=True) == ["sh"]


def test_a_command_in_a_pod_has_options_that_kubectl_knows() -> None:
    access = Access(("kubectl", "--namespace=a"), "train-0", before=("--",))
    words = ["kubectl", "--namespace=a", "exec", "-i", "-t", "train-0", "--", "ls", "-l"]
    assert access.command(["ls", "-l"], terminal=True) == words
