"""One address for two hosts of a server: no request is lost while they are updated one by one."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import STAND_IN
from tests.lab.web import web_image
from tests.sandbox import Project

pytestmark = pytest.mark.lab
PORT, PROXY = 9000, 8888
PAUSE = 0.02
"""Seconds of each client between two requests: without them, all of this uses a whole core."""
ANSWER = "mkdir /tmp/www && cd /tmp/www && echo VERSION $KIT_HOST >who && touch health && sleep 2"

TRAIN = f"""\
image: {STAND_IN}
train: {{dataset: digits, model: cnn, epochs: 9999, batch_size: 32, learning_rate: 0.05}}
environment: {{OMP_NUM_THREADS: "1", LAB_PACE: "0.1"}}
hosts: {{min: 1}}
"""


def server(image: str, version: str) -> str:
    # As servers do: after SIGTERM it accepts no connection, and finishes the answers it began.
    serve = f"busybox httpd -f -p {PORT} -h /tmp/www & trap 'kill $!; sleep 1; exit' TERM; wait"
    command = ["sh", "-c", f"{ANSWER.replace('VERSION', version)}; {serve}"]
    return (
        f"image: {image}\ncommand: {json.dumps(command)}\nport: {PORT}\n"
        f"proxy: {{port: {PROXY}, image: {image}}}\nstop_grace_period: 3s\n"
    )


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    made = make_operator(lab, project, docker, "swarm")
    made.write({}, servers={})
    made.split("--infer", "n1:0", "--infer", "n2:0")
    made.kit("swarm", "up", "--yes")
    try:
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            print(made.kit("status"), *made.kit("logs").splitlines()[-30:], sep="\n")
            made.kit("stop", "--all")


@dataclass
class Clients:
    """Asks again and again, from several threads; collects the answers and the failures."""

    url: str
    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    ended: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        while not self.ended.wait(PAUSE):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(self.url, timeout=30) as answer:
                    self.answers[answer.read().decode().strip()] += 1
            except (OSError, HTTPException) as error:
                self.failures.append(repr(error))
            self.slowest = max(self.slowest, time.monotonic() - began)

    @contextlib.contextmanager
    def asking(self, count: int = 4) -> Iterator[None]:
        threads = [threading.Thread(target=self.ask) for _ in range(count)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self.ended.set()
            for each in threads:
                each.join()


def test_no_request_is_lost_in_an_update(operator: Operator, lab: Lab) -> None:
    image = web_image(lab)
    operator.project.write(None, {}, {"web": server(image, "one")})
    operator.kit("render")
    operator.kit("deploy")
    url = f"http://{lab.settings.address('n1')}:{PROXY}"
    assert url in operator.kit("status")

    def both() -> bool:
        found = set()
        for _ in range(6):
            with contextlib.suppress(OSError):
                found.add(urllib.request.urlopen(f"{url}/who", timeout=5).read())
        return len(found) == 2

    wait_for(both, "both hosts to answer behind the proxy")
    operator.project.write(None, {}, {"web": server(image, "two")})
    operator.kit("render")
    clients = Clients(f"{url}/who")
    direct = Clients(f"http://{lab.settings.address('n1')}:{PORT}/who")
    with clients.asking(), direct.asking(1):
        output = operator.kit("deploy")
        time.sleep(2)
    print(clients.answers, clients.slowest, clients.failures[:5])
    print("without the proxy:", direct.answers, len(direct.failures), direct.slowest)
    assert direct.failures
    assert output.index("update serve-web_serve-on-n1") < output.index(
        "update serve-web_serve-on-n2"
    )
    assert clients.failures == []
    assert sum(clients.answers.values()) > 500
    assert {text.split()[0] for text in clients.answers} == {"one", "two"}
    assert {text.split()[1] for text in clients.answers} == {"n1", "n2"}

    # A host that is killed: requests go to the other one.
    killed = Clients(f"{url}/who")
    with killed.asking():
        time.sleep(1)
        lab.ssh("n2", "docker kill $(docker ps -q --filter name=serve-web_serve-on-n2)")
        time.sleep(6)
    print(killed.answers, killed.slowest, killed.failures[:5])
    # Only an answer that had begun is cut: nobody can send the rest of it.
    assert all("IncompleteRead" in each for each in killed.failures)
    assert len(killed.failures) <= 4

    # A node that is drained, and comes back.
    wait_for(both, "both hosts to answer again")
    drained = Clients(f"{url}/who")
    with drained.asking():
        time.sleep(1)
        lab.ssh("n1", "docker node update --availability drain n2")
        time.sleep(6)
        lab.ssh("n1", "docker node update --availability active n2")
        time.sleep(6)
    print(drained.answers, drained.slowest, drained.failures[:5])
    # Swarm does not wait for answers that have begun.
    assert all("IncompleteRead" in each for each in drained.failures)
    assert len(drained.failures) <= 4

    # A node that loses its power: it closes no connection.
    wait_for(both, "both hosts to answer after the drain")
    dark = Clients(f"{url}/who")
    try:
        with dark.asking():
            time.sleep(1)
            lab.do("kill", "n2")
            time.sleep(15)
    finally:
        lab.do("start", "n2")
    print(dark.answers, dark.slowest, dark.failures[:5])
    assert all("IncompleteRead" in each for each in dark.failures)
    assert dark.slowest < 20


@pytest.mark.long
def test_no_request_is_lost_when_a_server_and_a_training_swap_hosts(
    operator: Operator, lab: Lab
) -> None:
    """Only a real Swarm, with a real proxy, shows that somebody answers at every moment."""
    operator.split("--train", "n2:0")
    operator.project.write(None, {"digits": TRAIN}, {"web": server(web_image(lab), "one")})
    operator.kit("render")
    operator.kit("deploy")
    url = f"http://{lab.settings.address('n1')}:{PROXY}"
    wait_for(operator.trains, "a checkpoint")
    operator.split("--infer", "n2:1", "--train", "n1:0")
    clients = Clients(f"{url}/who")
    with clients.asking():
        output = operator.kit("deploy")
        time.sleep(1)
    print(clients.answers, clients.slowest, clients.failures[:5])
    assert "remove train-digits" in output
    assert "remove serve-web" not in output
    assert {text.split()[1] for text in clients.answers} == {"n1", "n2"}
    # Swarm does not wait for answers that have begun.
    assert all("IncompleteRead" in each for each in clients.failures)
    assert len(clients.failures) <= 4
    wait_for(lambda: operator.status()["world_size"] == 2, "both hosts to train")
