"""What of NCCL can be tested without a GPU; tests/gpu has the rest."""

from pathlib import Path

from trainer.elastic import nccl
from trainer.elastic.membership import GENTLE, Membership


def member(formed: set[int] | None) -> Membership:
    """A worker without an agent: it knows its sockets from before, and those of its group."""
    found = Membership.__new__(Membership)
    found._before, found._formed = {1, 2}, formed
    return found


def test_an_abort_leaves_the_connections_of_nccl_to_it_at_first() -> None:
    """Socket 3 is gloo's, 4 has been opened by NCCL since the group was formed."""
    ranks = member(formed={1, 2, 3})
    ended = [{each for each in range(1, 5) if ranks._is_to_end(each, n)} for n in (0, GENTLE + 1)]
    assert ended == [{3}, {3, 4}]
    # While a group is formed, and on CPUs, all of its sockets are gloo's.
    assert [each for each in range(1, 5) if member(None)._is_to_end(each, 0)] == [3, 4]


def test_torch_leaves_errors_of_nccl_to_the_group() -> None:
    """Whatever the job's file says: its variables are for scripts, too."""
    environ = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "NCCL_DEBUG": "WARN"}
    nccl.handle_errors(environ)
    assert environ == {**nccl.OWN_HANDLING, "NCCL_DEBUG": "WARN"}


def test_a_flight_recorder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    """This build of torch has none, and the folder is not there."""
    nccl.dump(0, {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "gone" / "rank_")})
    nccl.dump(0, {})
    assert list(tmp_path.iterdir()) == []
