"""OpenAI's API of completions, request ids and the access log, from a real server of a gpt."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.hosts import hosts, wait_until
from tests.trainer.servers import Answer, Server, start
from tests.trainer.test_serve_models import CHARACTERS, fresh, training
from trainer.checkpoints import format as checkpoint
from trainer.contract.events import Serving, Started
from trainer.serve.completions import Piece, Request, overhang, pieces
from trainer.serve.requests import REPEAT
from trainer.serve.text import Wish, choose

TOKEN = "hush-3"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("gpt")
    saved, _ = fresh(training("text", "gpt"), CHARACTERS, (8,))
    checkpoint.write(folder / "n1", saved, training("text", "gpt"), 1)
    with hosts(folder, cold=True) as local:
        environ = {"SERVE_TOKEN": TOKEN}
        made = start(local, folder / "n1", environ=environ, token="SERVE_TOKEN", job="demo")
        made.token = TOKEN
        yield made


def complete(server: Server, **body: Any) -> Answer:
    return server.ask("POST", "/v1/completions", json.dumps(body), "application/json")


def events(answer: Answer) -> list[Any]:
    """The events of a stream, which must end with [DONE]."""
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_completion_is_openais(server: Server) -> None:
    told = complete(server, model="demo", prompt="abc", max_tokens=9, seed=4).json
    assert told["object"] == "text_completion"
    assert told["model"] == "demo"
    assert told["id"].startswith("cmpl-")
    (choice,) = told["choices"]
    assert len(choice.pop("text")) == 9
    assert choice == {"index": 0, "logprobs": None, "finish_reason": "length"}
    assert told["usage"] == {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
    listed = server.get("/v1/models").json
    assert [(each["id"], each["object"]) for each in listed["data"]] == [("demo", "model")]


def test_a_stream_has_the_text_of_the_whole_answer(server: Server) -> None:
    wanted = {"prompt": "ab", "max_tokens": 40, "seed": 5, "temperature": 1.5, "top_p": 0.9}
    whole = complete(server, **wanted).json["choices"][0]["text"]
    streamed = events(complete(server, **wanted, stream=True))
    texts = [each["choices"][0]["text"] for each in streamed]
    assert len(texts) == 40
    assert "".join(texts) == whole
    assert [each["choices"][0]["finish_reason"] for each in streamed] == [None] * 39 + ["length"]
    assert len({each["id"] for each in streamed}) == 1

    stop = whole[20:23]
    at = whole.find(stop)
    for answer in (
        complete(server, **wanted, stop=stop).json["choices"],
        complete(server, **wanted, stop=["never€€€", stop]).json["choices"],
    ):
        assert (answer[0]["text"], answer[0]["finish_reason"]) == (whole[:at], "stop")
    counted = {**wanted, "stream": True, "stream_options": {"include_usage": True}}
    *rest, last = events(complete(server, **counted, stop=stop))
    assert "".join(each["choices"][0]["text"] for each in rest) == whole[:at]
    assert rest[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(each["usage"] is None for each in rest)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == at + 3
    echoed = complete(server, **wanted, echo=True).json["choices"][0]["text"]
    assert echoed == f"ab{whole}"


REFUSALS: dict[str, tuple[dict[str, Any], int, str]] = {
    "n": ({"n": 2}, 400, "n: is not supported here; leave it out"),
    "no number": (
        {"temperature": "hot"},
        400,
        "temperature: is not a valid number; send a number of 0 to 2",
    ),
    "too many": (
        {"max_tokens": 5000},
        400,
        "max_tokens: is not a valid number; send a whole number of 1 to 2000",
    ),
    "a character": ({"prompt": "xyz"}, 400, "prompt: the model has never seen"),
    "tokens": ({"prompt": [[1, 2]]}, 400, "prompt: is not a text; send a text"),
    "stop": ({"stop": ["a"] * 5}, 400, "stop: is no such list"),
    "an empty key": ({"": 1}, 400, ": is no key of a completion"),
    "a key": ({"tools": []}, 400, "tools: is no key of a completion"),
    "a model": ({"model": "gpt-4"}, 404, "there is no model gpt-4; ask for demo"),
}


@pytest.mark.parametrize("path", ["/v1/completions", "/complete"])
def test_a_body_that_is_no_json_text_is_refused(server: Server, path: str) -> None:
    key = "text" if path == "/complete" else "prompt"

    def refused(body: str | bytes, kind: str = "application/json") -> tuple[int, str]:
        answer = server.ask("POST", path, body, kind)
        return answer.status, answer.body.decode()

    for half in (f'{{"{key}": "a\\ud800"}}', f'{{"{key}": "a\ud800"}}', '{"\\udfff": 1}'):
        status, said = refused(half.encode(errors="surrogatepass"))
        assert (status, "the body is not JSON" in said) == (400, True)
        assert f'send {{\\"{key}\\": \\"To be\\"}}' in said
    status, said = refused(f'{{"{key}": "\\ud83d\\ude00"}}')
    assert "the model has never seen" in said
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        status, said = refused(json.dumps({key: "a"}), kind)
        assert (status, f"the body is {kind}, not application/json" in said) == (415, True)


def test_what_the_model_takes_is_said(server: Server) -> None:
    assert server.get("/model").json["input"] == {"shape": [8], "values": "a text"}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_in_openais_form(server: Server, case: str) -> None:
    body, status, said = REFUSALS[case]
    for stream in (False, True):
        answer = complete(server, **{"prompt": "a", **body}, stream=stream)
        assert answer.status == status
        error = answer.json["error"]
        assert error["message"].startswith(said)
        assert error["param"] == next(iter(body))
        assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


def test_the_token_is_the_api_key(server: Server) -> None:
    for path in ("/v1/models", "/v1/completions"):
        refused = server.ask("POST", path, "{}", "application/json", Authorization="Bearer guessed")
        assert refused.status == 401
        assert refused.json["error"]["code"] == "invalid_api_key"


def test_many_streams_share_the_model_and_gone_ones_leave_it(server: Server) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = json.dumps({"prompt": "a", "max_tokens": 2000, "stream": True})
    kind = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    connection.request("POST", "/v1/completions", body, kind)
    answer = connection.getresponse()
    assert answer.read(20).startswith(b"data: ")
    computed = server.metric("kit_serve_batch_size_sum")
    connection.close()
    answer.close()
    wait_until(lambda: server.metric("kit_serve_queue_length") == 0, "the place to be free")

    def rests() -> bool:
        before = server.metric("kit_serve_batch_size_sum")
        time.sleep(0.2)
        return server.metric("kit_serve_batch_size_sum") == before

    wait_until(rests, "the end of its drawing")
    assert server.metric("kit_serve_batch_size_sum") - computed < 1900
    assert complete(server, prompt="a", max_tokens=3).status == 200


def request(prompt: str, length: int, *stops: str, echo: bool = False) -> Request:
    return Request(Wish([], length, 0, None), prompt, stops, echo, True, False)


def in_pieces(text: str, wanted: Request) -> list[Piece]:
    async def drawn() -> AsyncIterator[str]:
        for each in text:
            yield each

    async def collected() -> list[Piece]:
        return [piece async for piece in pieces(drawn(), wanted)]

    return asyncio.run(collected())


def test_no_piece_has_a_part_of_a_stop_sequence() -> None:
    found = in_pieces("one, two.\n\nthree", request("p", 16, "\n\n", "four"))
    assert "".join(piece.text for piece in found) == "one, two."
    assert found[-1].finish == "stop"
    # Its beginning alone is a part of the text.
    found = in_pieces("a\nb\n", request("p", 4, "\n\n"))
    assert "".join(piece.text for piece in found) == "a\nb\n"
    assert (found[-1].finish, found[-1].tokens) == ("length", 4)
    # A sequence in the prompt ends nothing, nor does one that begins there.
    found = in_pieces("bc", request("ab", 2, "bb", "ab", echo=True))
    assert "".join(piece.text for piece in found) == "abbc"
    assert [overhang(text, ("abc", "bd")) for text in ("xab", "xb", "x", "abcx")] == [2, 1, 0, 0]


def test_only_the_likeliest_are_drawn() -> None:
    draw = np.random.default_rng(0)
    scores = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    drawn = {choose(scores, 1.0, draw, 0.7) for _ in range(300)}
    assert drawn == {0, 1}
    assert {choose(scores, 1.0, draw, 1.0) for _ in range(300)} == {0, 1, 2, 3}
    assert {choose(scores, 1.0, draw, 0.001) for _ in range(50)} == {0}


def logged(server: Server, path: str) -> list[str]:
    return [line for line in server.task.text.splitlines() if f" {path} " in line]


def test_a_request_has_an_id_in_the_log(server: Server) -> None:
    own = server.get("/model", **{"X-Request-Id": "abc-1.2:3"})
    assert own.headers["x-request-id"] == "abc-1.2:3"
    for wrong in ("", "a b", "a" * 65, "-x", 'a"b'):
        made = server.get("/model", **{"X-Request-Id": wrong}).headers["x-request-id"]
        assert made != wrong
        assert len(made) == 16
    refused = server.get("/nowhere", Authorization="Bearer secret-key")
    wait_until(lambda: bool(logged(server, "/nowhere")), "its line")
    (line,) = logged(server, "/nowhere")
    number = refused.headers["x-request-id"]
    assert line.startswith("serve n1: GET /nowhere 404, ")
    assert line.endswith(f"{len(refused.body)} bytes, 127.0.0.1, request {number}")
    assert any(line.endswith("request abc-1.2:3") for line in logged(server, "/model"))
    server.get("/health")
    server.get("/page/%0Ainjected%20line")
    wait_until(lambda: bool(logged(server, r"/page/\ninjected%20line")), "an escaped path")
    assert not logged(server, "/health")
    for secret in (TOKEN, "secret-key", "abcd" * 3):
        assert secret not in server.task.text


def test_a_busy_server_repeats_its_state_among_its_lines(server: Server) -> None:
    before = len(server.task.of(Serving)), len(server.task.of(Started))
    for _ in range(2 * REPEAT):
        server.get("/model")
    after = len(server.task.of(Serving)), len(server.task.of(Started))
    assert (after[0] - before[0], after[1] - before[1]) == (2, 2)
    assert server.task.of(Serving)[-1] == replace(
        server.task.of(Serving)[0], time=server.task.of(Serving)[-1].time
    )


@pytest.mark.parametrize("form", ["json", "none"])
def test_the_access_log_is_json_or_none(tmp_path: Path, form: str) -> None:
    saved, _ = fresh(training("text", "gpt"), CHARACTERS, (8,))
    checkpoint.write(tmp_path / "n1", saved, training("text", "gpt"), 1)
    with hosts(tmp_path) as local:
        server = start(local, tmp_path / "n1", job="demo", access_log=form)
        sent = {"X-Request-Id": "one", "X-Forwarded-For": "10.0.0.7, 10.0.0.8"}
        server.ask("POST", "/v1/completions", '{"prompt": "ab"}', "application/json", **sent)
        server.get("/health")
        lines = [line for line in server.task.text.splitlines() if "/v1/" in line]
        if form == "none":
            assert lines == []
            return
        (entry,) = map(json.loads, lines)
        assert entry.pop("ms") > 0
        assert entry.pop("bytes") > 100
        assert entry.pop("time").endswith("Z")
        assert entry == {
            "host": "n1",
            "client": "127.0.0.1",
            "sender": "10.0.0.7",
            "method": "POST",
            "path": "/v1/completions",
            "status": 200,
            "request": "one",
        }
