"""A handler of the user's own: the files of a script, JSON in and out, faults by file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.hosts import hosts, wait_until
from tests.trainer.servers import Answer, Server, start

CODE = """\
import asyncio
import json


class Handler:
    def load(self, folder):
        self.factors = json.loads((folder / "model.json").read_text())

    def predict(self, batch):
        if "short" in batch:
            return []
        if "exit" in batch:
            raise SystemExit("no such word")
        if "cancel" in batch:
            raise asyncio.CancelledError
        if "half" in batch:
            return [chr(0xD800)]
        by = self.factors["by"]
        return [{"words": len(text.split()) * by, "of": len(batch)} for text in batch]
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text(CODE)
    (tmp_path / "made").mkdir()
    return tmp_path


@pytest.fixture
def server(files: Path) -> Iterator[Server]:
    environ = {"KIT_CODE": str(files / "code" / "mine.py")}
    with hosts(files) as local:
        yield start(
            local,
            files / "made",
            environ=environ,
            wait="/health",
            handler="mine:Handler",
            batch={"size": 8, "window": 0.2},
        )


def write(files: Path, content: Any) -> None:
    part = files / "made" / ".part"
    part.write_text(content if isinstance(content, str) else json.dumps(content))
    part.rename(files / "made" / "model.json")


def answers(answer: Answer) -> list[Any]:
    assert answer.status == 200, answer.body
    return [each["answer"] for each in answer.json["predictions"]]


def test_it_answers_with_the_files_of_a_script(server: Server, files: Path) -> None:
    assert server.get("/ready").status == 503
    assert "has not written any file yet" in server.get("/model").json["reason"]
    write(files, {"by": 1})
    server.until("/ready", 200)
    assert answers(server.predict(["a b", "c"])) == [{"words": 2, "of": 2}, {"words": 1, "of": 2}]
    described = server.get("/model").json
    assert (described["model"], described["kind"]) == ("mine:Handler", "numbers")
    assert server.predict(["a"]).json["checkpoint"]["name"] == "model.json"
    # Requests of several clients share a batch.
    assert max(answers(each)[0]["of"] for each in server.several(6, ["x"])) > 1

    write(files, {"by": 10})
    wait_until(lambda: answers(server.predict(["a b"]))[0]["words"] == 20, "the new files")
    # Files that cannot be loaded are told, and the older ones answer.
    write(files, "not JSON")
    said = "mine.py:7: in load: JSONDecodeError: Expecting value"
    wait_until(lambda: said in server.task.text, "the fault")
    assert answers(server.predict(["a"]))[0]["words"] == 10
    assert "trainer/" not in server.task.text


def test_a_fault_is_told_by_its_line_and_request(server: Server, files: Path) -> None:
    write(files, {"by": 1})
    server.until("/ready", 200)
    body = json.dumps({"inputs": [3]})
    sent = {"X-Request-Id": "bad-one"}
    refused = server.ask("POST", "/predict", body, "application/json", **sent)
    assert refused.status == 500
    assert refused.headers["x-request-id"] == refused.json["request"] == "bad-one"
    assert refused.json["error"] == "the model failed"
    said = "mine.py:19: in <listcomp>: AttributeError: 'int' object has no attribute 'split'"
    wait_until(lambda: said in server.task.text, "the fault")
    assert "(request bad-one)" in server.task.text
    assert "trainer/" not in server.task.text
    # Another client's inputs in the same batch are answered.
    assert answers(server.predict(["a b"])) == [{"words": 2, "of": 1}]
    short = server.predict(["short"])
    assert short.status == 500
    assert "mine.py:9: it returned 0 values for 1 inputs" in server.task.text
    for wrong in ("{}", '{"inputs": []}', '{"inputs": "a"}'):
        assert server.ask("POST", "/predict", wrong, "application/json").status == 422
    assert server.predict(["a"] * 300).status == 413
    assert server.image(b"no picture").status == 422


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("exit", "mine.py:13: in predict: SystemExit: no such word"),
        ("cancel", "mine.py:15: in predict: CancelledError"),
        ("half", "mine.py:9: UnicodeEncodeError"),
    ],
)
def test_no_input_ends_the_server(server: Server, files: Path, word: str, said: str) -> None:
    """Whatever the handler raises or returns for it."""
    write(files, {"by": 1})
    server.until("/ready", 200)
    for _ in range(2):
        failed = server.predict([word])
        assert (failed.status, failed.json["error"]) == (500, "the model failed")
    wait_until(lambda: said in server.task.text, "the fault")
    assert "Traceback" not in server.task.text
    assert answers(server.predict(["a b"]))[0]["words"] == 2
