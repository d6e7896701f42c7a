"""Programs on hosts that print lines of JSON: here processes of this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from kit.datasets.programs import talk
from kit.errors import InputError, KitError
from kit.hosts.programs import Program, ProgramError, RefusedError

ANSWERS = """
import json, sys
print("Welcome to n1!")
for line in sys.stdin:
    request = json.loads(line)
    answer = {"error": "no such thing"} if request["do"] == "fail" else request
    print(json.dumps(answer), flush=True)
"""


def test_a_program_answers_among_the_lines_of_a_login_and_goes_on_after_a_refusal() -> None:
    with Program("n1", [sys.executable, "-c", ANSWERS]) as program:
        with pytest.raises(RefusedError, match="n1: no such thing"):
            program.ask("fail")
        assert program.ask("more", of=[1]) == {"do": "more", "of": [1]}


def test_a_silent_program_is_ended() -> None:
    with Program("n1", ["sleep", "600"]) as program:
        for _ in range(2):
            with pytest.raises(ProgramError, match="n1: no answer within 0 s"):
                program.ask("hello", patience=0.1)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("", "exit status 7"),
        ("Warning: added n1\nConnection refused", "Connection refused"),
        ("docker: command [ssh n1] has failed: stderr=Permission denied", "Permission denied"),
        (
            "Unable to find image 'i' locally\ndocker: Error response from daemon: failed:\n"
            "no such runtime.\n\nRun 'docker run --help' for more information",
            "Error response from daemon: failed: no such runtime.",
        ),
        (f"docker: {'a' * 200}{'b' * 200}", f"{'a' * 120} … {'b' * 120}"),
    ],
)
def test_a_program_that_ends_says_why(said: str, what: str) -> None:
    script = 'printf %s "$1" >&2; exit 7'
    with (
        Program("n1", ["sh", "-c", script, "sh", said]) as program,
        pytest.raises(ProgramError) as caught,
    ):
        program.ask("hello")
    assert caught.value.what == what
    assert caught.value.message == f"n1: its container ended: {what}"


def test_a_machine_without_ssh_is_told_so() -> None:
    with pytest.raises(InputError, match="ssh is not installed here"):
        Program("n1", ["kit-no-such-command"])


def test_a_program_is_fed_and_its_own_failure_is_told() -> None:
    failed = """cat; echo '{"state": "failed", "message": "no room", "fix": "make room"}'; exit 1"""
    found = talk(["sh", "-c", failed], os.environ, "n1", [b"1\n", b"[2]\n"])
    assert [next(found), next(found)] == [1, [2]]
    with pytest.raises(KitError, match="n1: no room\nmake room"):
        list(found)


def test_a_source_that_fails_ends_the_program() -> None:
    def broken() -> Iterator[bytes]:
        yield b"1\n"
        raise KitError("the file has changed")

    with pytest.raises(KitError, match="the file has changed"):
        list(talk(["cat"], os.environ, "n1", broken()))


def test_an_interrupted_program_is_ended() -> None:
    """It does not read its input, whose end would not end it, and whose pipe is full."""
    found = talk(["sh", "-c", "echo 1; exec sleep 600"], os.environ, "n1", [bytes(2**20)])
    assert next(found) == 1
    found.close()  # type: ignore[attr-defined]
