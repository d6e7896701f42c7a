"""A server under pressure: full queues, slow answers, clients that leave, its end."""

import http.client
import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.trainer.hosts import DEADLINE, hosts, wait_until
from tests.trainer.servers import Server, inputs, start

WAITING = "kit_serve_queue_length"


@pytest.fixture(scope="module")
def patient(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose batches wait for four samples, for a minute; no more may wait."""
    with hosts(tmp_path_factory.mktemp("queue")) as local:
        yield start(local, trained, batch={"size": 4, "window": 60}, queue=4, timeout=DEADLINE)


def send(server: Server) -> http.client.HTTPConnection:
    """Ask for one sample, and do not wait for the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)
    body = json.dumps({"inputs": inputs(1)})
    connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
    return connection


def status(connection: http.client.HTTPConnection) -> int:
    """That of the answer, when it has come."""
    with closing(connection), connection.getresponse() as answer:
        assert len(json.loads(answer.read())["predictions"]) == 1
        return answer.status


def until_waiting(server: Server, count: int) -> None:
    wait_until(lambda: server.metric(WAITING) == count, f"{count} samples wait")


def test_a_full_batch_does_not_wait_for_the_window(patient: Server) -> None:
    answers = patient.several(4, inputs(1))
    assert [answer.json["batch_size"] for answer in answers] == [4] * 4


def test_a_full_queue_is_429_until_there_is_room(patient: Server) -> None:
    waiting = [send(patient) for _ in range(3)]
    until_waiting(patient, 3)
    refused = patient.predict(inputs(2))
    assert refused.status == 429
    assert refused.headers["retry-after"] == "1"
    assert "3 samples wait already, 4 may" in refused.json["error"]
    # Health does not wait behind them.
    assert patient.get("/health").status == patient.get("/ready").status == 200
    fourth = patient.predict(inputs(1))
    assert fourth.json["batch_size"] == 4
    assert [status(connection) for connection in waiting] == [200] * 3
    until_waiting(patient, 0)


def test_a_large_request_is_not_starved_by_small_ones(trained: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        server = start(local, trained, batch={"size": 4, "window": 60}, queue=8, timeout=90)
        small = [send(server) for _ in range(3)]
        until_waiting(server, 3)
        with ThreadPoolExecutor(1) as pool:
            large = pool.submit(server.predict, inputs(6))
            until_waiting(server, 9)  # It waits for one place of the eight.
            late = server.predict(inputs(1))
            assert (late.status, "9 samples wait already" in late.json["error"]) == (429, True)
            small.pop().close()
            assert large.result().status == 200
        assert [status(connection) for connection in small] == [200] * 2
        until_waiting(server, 0)


def test_who_has_gone_is_not_computed(patient: Server) -> None:
    gone = [send(patient) for _ in range(2)]
    until_waiting(patient, 2)
    for connection in gone:
        connection.close()
    gone_metric = 'kit_serve_requests_total{path="/predict",status="499"}'
    wait_until(lambda: patient.metric(gone_metric) == 2, "both are missed")
    assert patient.metric(WAITING) == 0
    before = patient.metric("kit_serve_batch_size_sum")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(patient.predict, [inputs(1)] * 2 + [inputs(1, 5)] * 2))
    assert {answer.json["batch_size"] for answer in answers} == {4}
    assert patient.metric("kit_serve_batch_size_sum") - before == 4
    until_waiting(patient, 0)


def test_who_waits_too_long_is_told(trained: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        server = start(local, trained, batch={"size": 4, "window": 60}, timeout=5)
        late = server.predict(inputs(1))
        assert late.status == 503
        assert "no answer within 5 s" in late.json["error"]
        assert "retry-after" in late.headers
        assert server.several(4, inputs(1))[0].status == 200
        # The late one was not in that batch, nor does it take a place.
        assert server.metric("kit_serve_batch_size_sum") == 4
        assert server.metric(WAITING) == 0


def test_what_was_accepted_is_answered_before_the_end(trained: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        server = start(local, trained, batch={"size": 64, "window": 4})
        waiting = [send(server) for _ in range(3)]
        idle = socket.create_connection(("127.0.0.1", server.port))
        until_waiting(server, 3)
        server.task.process.send_signal(signal.SIGTERM)
        for connection in waiting:
            with closing(connection), connection.getresponse() as answer:
                # Nothing more may be asked over the same connection.
                assert (answer.status, answer.headers["Connection"]) == (200, "close")
        assert server.task.wait() == 0
        idle.close()
        with pytest.raises(OSError, match="refused"):
            server.get("/health")
        text = server.task.text
    assert text.endswith("serve n1: ends, all requests are answered\n")
    assert "Traceback" not in text


def test_two_replicas_share_the_work(trained: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        server = start(
            local, trained, environ={"KIT_REPLICAS": "2"}, batch={"size": 2, "window": 0.001}
        )
        assert {answer.status for answer in server.several(32, inputs(1))} == {200}
        assert server.get("/model").json["replicas"] == ["cpu", "cpu"]
        for answer in server.several(4, inputs(5)):
            assert answer.best == server.predict(inputs(5)).best
