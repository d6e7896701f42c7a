"""Pulls from a registry that is away: what Docker says then, and when it is asked again."""

from __future__ import annotations

import pytest

from kit.errors import KitError
from kit.runtime.pulling import PAUSES, pull

REFUSED = (
    "n1: pull registry.lab:5000/own:1: Error response from daemon: failed to resolve reference "
    '"registry.lab:5000/own:1": failed to do request: Head "https://registry.lab:5000/v2/own/'
    'manifests/1": dial tcp 10.0.0.1:5000: connect: connection refused'
)
TIMEOUT = (
    'n1: pull own:1: Error response from daemon: Get "https://registry-1.docker.io/v2/": net/http: '
    "request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)"
)
MISSING = "n1: pull own:2: Error response from daemon: manifest for own:2 not found"
DENIED = "n1: pull own:1: Error response from daemon: pull access denied for own"


@pytest.mark.parametrize(
    ("answers", "paused", "end"),
    [
        ([], [], ""),
        ([REFUSED, TIMEOUT], [1.0, 2.0], ""),
        ([MISSING], [], MISSING),
        ([REFUSED, DENIED], [1.0], DENIED),
        ([REFUSED] * (len(PAUSES) + 1), [*PAUSES], REFUSED),
    ],
)
def test_a_registry_that_is_away_is_asked_again(
    answers: list[str], paused: list[float], end: str
) -> None:
    left, pauses = iter(answers), list[float]()

    def attempt() -> None:
        if said := next(left, ""):
            raise KitError(said)

    if end:
        with pytest.raises(KitError) as error:
            pull(attempt, pauses.append)
        assert error.value.message == end
    else:
        pull(attempt, pauses.append)
    assert pauses == paused
