"""Notifications: found once, signed, sent again after faults, and never in the way of a job."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from tests.pages import blocks
from tests.ports import free_port
from tests.receiver import Hook, Posted, hook
from tests.trainer.hosts import (
    DEADLINE,
    Hosts,
    Task,
    descendants,
    hosts,
    kill_all,
    wait_until,
    write_programs,
)
from trainer.contract.notify import KINDS, USUAL, shown_url, webhook_fault
from trainer.group.decisions import Decisions
from trainer.group.messages import Halt, Notice, Order, Report, Result, encode
from trainer.group.notices import REPEATED, Notices
from trainer.launcher import start, webhook
from trainer.launcher.errors import LaunchError
from trainer.launcher.last_failure import ask_what_has_failed
from trainer.launcher.receivers import Receiver, read_receiver
from trainer.launcher.rounds import Rounds
from trainer.launcher.start import prepare
from trainer.launcher.webhook import TITLES, seconds_of, try_webhook

KEY = "whsec_" + base64.b64encode(b"a key of the lab").decode()


def wanted(*receivers: dict[str, Any]) -> str:
    every = [{"on": [*KINDS], **each} for each in receivers]
    return json.dumps({"job": "own", "cluster": "lab", "receivers": every})


# ---- What is found


class Coordinator:
    """The decisions of a coordinator, and what it sends."""

    def __init__(self, *, script: bool = False, least: int = 1) -> None:
        self.now, self.sent = 0.0, list[Notice]()
        notices = Notices(self.send, lambda: self.now)
        self.decides: Decisions
        if script:
            self.decides = Rounds(lambda: self.now, notices=notices)
        else:
            self.decides = Decisions(lambda: self.now, least, 3, notices=notices)

    def send(self, notice: Notice) -> None:
        """It arrives at once."""
        self.sent.append(notice)
        self.decides.notices.note_sent(notice.id)

    @property
    def told(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(each.kind, each.hosts) for each in self.sent]

    def report(self, *reports: Report, seconds: float = 0.0) -> None:
        """Let time go by, while hosts report."""
        for _ in range(int(seconds / 0.4) + 1):
            for each in reports:
                self.decides.report(each)
            self.decides.orders()
            self.now += 0.4


def member(name: str, around: int, **more: Any) -> Report:
    """A host in a group of n1, n2 and n3."""
    known: dict[str, Any] = {"generation": around, "members": ("n1-1", "n2-1", "n3-1")}
    return Report(f"{name}-1", name, 1, f"{name}:1", **{**known, **more})


@pytest.mark.parametrize("script", [False, True])
def test_a_host_is_lost_once_and_not_if_it_was_asked_to_end(script: bool) -> None:
    before = Coordinator(script=script)
    around = [member(name, 7) for name in ("n1", "n2", "n3")]
    before.report(*around)
    before.decides.lose("n3-1", "is silent for 1.6 s")
    before.report(*around[:2])
    before.report(member("n2", 7, stops=True))
    before.decides.lose("n2-1", "has closed its connection")
    assert before.told == [("host_lost", ("n3",))]
    assert before.sent[0].message == "n3 is silent for 1.6 s"
    # Another coordinator finds the same, and knows that it was sent.
    after, told = Coordinator(script=script), before.decides.notices.told
    after.report(member("n1", 7, told=told), seconds=20)
    assert ("host_lost", ("n3",)) not in after.told
    # One that was lost together with the coordinator is found by its group.
    assert after.told == [("host_lost", ("n2",))]


def test_the_end_and_its_figures_are_told_once() -> None:
    result = Result("step-00000300", 300, 10, 0.971)
    for turn in range(2):
        found = Coordinator()
        told = ("completed-7",) * turn
        found.report(member("n1", 7, told=told), member("n2", 7, done=True, result=result))
        found.decides.lose("n2-1", "has closed its connection")
        found.report(member("n1", 7, done=True))
        assert found.told == [("completed", ())] * (1 - turn)
    first = Coordinator()
    first.report(member("n2", 7, done=True, result=result))
    assert first.sent[0].message == "the training is complete: step 300, accuracy 97.1 %"
    assert first.sent[0].result == result


def test_a_failure_that_an_engine_repeats_is_told_once_an_hour() -> None:
    found = Coordinator()
    halt = Halt("worker", "boom", 1)
    for number in range(4):
        agent = f"n1-{number}"
        found.report(Report(agent, "n1", 1, halt=halt))
        found.decides.lose(agent, "has closed its connection")
        found.now += REPEATED if number == 2 else 5
    assert found.told == [("failed", ("n1",))] * 2
    assert found.sent[0].exit_code == 1


def test_a_host_that_is_left_out_is_told_and_so_is_the_end_without_it() -> None:
    found = Coordinator(least=3)
    out = member("n1", 7, out=Halt("memory", "the GPU has lost memory", 1), left=7)
    found.report(out, member("n2", 7), seconds=2)
    assert found.told == [("left_out", ("n1",)), ("failed", ("n1",))]
    assert found.sent[0].message == "n1 is left out: the GPU has lost memory"


def test_scripts_are_given_up_and_complete() -> None:
    found = Coordinator(script=True)
    bounds = (1, 3, 0)
    found.report(*(member(name, 7, bounds=bounds) for name in ("n1", "n2", "n3")))
    idle: dict[str, Any] = {"left": 7, "ready": True, "bounds": bounds}
    wrong = member("n1", 7, **idle, failure=Halt("input", "no module", 2))
    others = [member(name, 7, **idle) for name in ("n2", "n3")]
    found.report(wrong, *others)
    assert found.told == [("left_out", ("n1",))]
    assert found.decides.group
    at = found.decides.group.generation
    done = [member(name, at, bounds=bounds, done=True) for name in ("n2", "n3")]
    found.report(*done)
    assert found.told == [("left_out", ("n1",)), ("completed", ())]
    for each in done:  # They end.
        found.decides.lose(each.agent, "has closed its connection")
    assert len(found.told) == 2


def test_a_process_that_only_tells_is_no_host() -> None:
    found = Coordinator(script=True)
    notice = Notice("session_ending", "session_ending-n1-5", "in 10 minutes", ("n1",))
    found.report(Report("n1-5", "n1", 0, notice=notice), seconds=1)
    assert found.sent == [notice]
    assert not found.decides.hosts


# ---- One webhook


def test_kinds_have_words() -> None:
    assert (*TITLES,) == (*KINDS, "test")
    assert {*USUAL} < {*KINDS}


@pytest.mark.parametrize(
    ("url", "shown", "fault"),
    [
        ("https://hooks.lab:8443/a?token=b", "https://hooks.lab:8443/…", ""),
        ("http://[fd00::1]/a", "http://[fd00::1]/…", ""),
        ("https://me:word@hooks.lab/", "https://hooks.lab/…", "has a user or a password"),
        ("tgram://token/chat", "tgram://…", "is no http:// or https:// URL"),
        ("https://", "…", "is no http:// or https:// URL"),
        ("https://a b", "…", "is no http:// or https:// URL"),
        ("https://a:99999/", "https://…", "is no http:// or https:// URL"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str, fault: str) -> None:
    assert (shown_url(url), webhook_fault(url)) == (shown, fault)


def to(found: Hook, **more: Any) -> Receiver:
    return read_receiver({"url": found.url, "on": [*KINDS], **more}, {"HOOK_KEY": KEY})


def is_signed(posted: Posted, key: bytes = b"a key of the lab") -> bool:
    """Check a signature by the function of the documentation."""
    [code] = blocks("docs/how-to/notify.md", "python")
    found: dict[str, Any] = {}
    exec(code, found)
    return bool(found["is_from_kit"](key, posted.headers, posted.content))


def test_a_webhook_is_signed() -> None:
    with hook() as found:
        assert try_webhook(to(found, key="HOOK_KEY"), {"id": "lab-own-1"}).fault == ""
        assert is_signed(found.posted[0])
        assert not is_signed(found.posted[0], b"another key")
        assert try_webhook(to(found), {"id": "lab-own-1"}).fault == ""
        assert "webhook-signature" not in found.posted[1].headers


@pytest.mark.parametrize(
    ("answer", "fault", "again", "wait"),
    [
        (204, "", False, 0),
        (400, "answers 400", False, 0),
        (500, "answers 500", True, 0),
        ((429, {"Retry-After": "7"}), "answers 429", True, 7),
        (
            (307, {"Location": "https://other.lab/token"}),
            "answers 307, a redirect to https://other.lab/…: write the URL that it leads to",
            False,
            0,
        ),
    ],
)
def test_what_an_answer_means(answer: Any, fault: str, again: bool, wait: float) -> None:
    with hook(answer) as found:
        assert try_webhook(to(found), {"id": "1"}) == (fault, again, wait)


def test_nobody_there_and_an_answer_that_comes_byte_by_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with hook() as found:
        receiver = to(found)
    assert try_webhook(receiver, {"id": "1"}) == ("does not answer (Connection refused)", True, 0.0)
    monkeypatch.setattr(webhook, "TRY", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                while True:
                    connection.send(b"H")
                    time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        outcome = try_webhook(receiver._replace(url=url), {"id": "1"})
        assert (outcome.fault, outcome.again) == ("does not answer (not within 0 s)", True)
        thread.join()


def test_retry_after_may_be_a_date() -> None:
    assert seconds_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert seconds_of("Wed, 21 Oct 2265 07:28:00 GMT") > 10**9
    assert seconds_of("soon") == 0


# ---- The process that sends


@contextmanager
def sender(folder: Path, *receivers: dict[str, Any], **environ: str) -> Iterator[Any]:
    """The real process; yields a function that sends a notice, its answers, and its log."""
    launch, log = write_programs(folder / "kit"), folder / "log"
    ours, theirs = socket.socketpair()
    path = os.environ.get("PYTHONPATH", "")
    environ = {"KIT_NOTIFY": wanted(*receivers), "KIT_HOST": "n1", "PYTHONPATH": path, **environ}
    with log.open("wb") as stream, ours, ours.makefile("rw") as lines:
        process = subprocess.Popen(
            [sys.executable, str(launch), "notifier"],
            stdin=theirs.fileno(),
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environ,
        )
        theirs.close()

        def send(notice: Notice) -> None:
            lines.write(json.dumps({"time": 10**10, **asdict(notice)}) + "\n")
            lines.flush()

        try:
            yield send, lines, log
        finally:
            ours.shutdown(socket.SHUT_RDWR)  # As at the end of the coordinator.
            assert process.wait(DEADLINE) == 0


NOTICE = Notice("failed", "failed-n1-7", "boom", ("n1",), 1)


def settled(lines: IO[str]) -> str:
    """The id of the next notice that was sent or given up; faults are told between them."""
    while isinstance(content := json.loads(lines.readline()), dict):
        assert content["fault"]
    return str(content)


def test_each_receiver_gets_a_notification_once_whatever_the_others_do(tmp_path: Path) -> None:
    with (
        hook(500, (503, {}), 200) as poor,
        hook(400) as strict,
        hook() as good,
        hook(500, 200) as chat,
    ):
        receivers: list[dict[str, Any]] = [
            {"url": poor.url, "key": "HOOK_KEY"},
            {"url": f"{strict.url}/secret"},
            {"secret": "GOOD_URL", "on": ["failed"]},
            {"secret": "MAIL_URL"},
            {"secret": "NO_URL"},
            {"secret": "CHAT_URL", "on": ["failed"]},
        ]
        secrets = {"HOOK_KEY": KEY, "GOOD_URL": f"{good.url}/token\n"}
        secrets["CHAT_URL"] = chat.url.replace("http:", "json:") + "/token"
        secrets["MAIL_URL"] = "nothing-that-is-known://word@example.com"
        with sender(tmp_path, *receivers, **secrets) as (send, lines, log):
            send(NOTICE)
            assert settled(lines) == NOTICE.id
            send(Notice("completed", "completed-7", "done"))
            assert settled(lines) == "completed-7"
    assert poor.kinds == ["failed", "failed", "failed", "completed"]
    assert strict.kinds == ["failed", "completed"]
    assert good.kinds == ["failed"]
    assert all(map(is_signed, poor.posted))
    assert {each.headers["webhook-id"] for each in poor.posted[:3]} == {"lab-own-failed-n1-7"}
    body = good.posted[0].body
    assert body.pop("time") == 10**10
    assert body == {
        "version": 1,
        "id": "lab-own-failed-n1-7",
        "kind": "failed",
        "job": "own",
        "cluster": "lab",
        "hosts": ["n1"],
        "message": "n1: boom",
        "exit_code": 1,
        "title": "lab: own has failed",
        "body": "n1: boom",
        "type": "failure",
    }
    # As Apprise sends it.
    assert [each.body["message"] for each in chat.posted] == ["n1: boom"] * 2
    assert (chat.posted[1].body["title"], chat.posted[1].path) == ("lab: own has failed", "/token")
    text = log.read_text()
    assert text.count(f"{poor.url}/… answers 500: failed is sent again") == 1
    assert f"{strict.url}/… is not notified of failed: it answers 400" in text
    assert "receiver 4 of notify cannot be used: nothing-that-is-known://…" in text
    missing = "the secret /run/secrets/NO_URL is not there"
    assert f"receiver 5 of notify cannot be used: {missing}" in text
    assert not [word for word in ("token", "word@", "secret\n", KEY) if word in text]


def test_a_receiver_that_hangs_delays_no_other_and_drops_the_oldest(tmp_path: Path) -> None:
    with hook(None) as hanging, hook() as good:
        receivers = [{"url": hanging.url}, {"url": good.url}]
        with sender(tmp_path, *receivers) as (send, lines, log):
            for number in range(105):
                send(Notice("host_lost", f"host_lost-{number}", "n2 is lost", ("n2",)))
                wait_until(lambda: bool(hanging.posted), "the first")
                if number % 50 == 0:  # Its queue is as long.
                    wait_until(lambda: len(good.posted) > number, "all at the other one")  # noqa: B023
            wait_until(lambda: len(good.posted) == 105, "all at the other one")
            # One is being sent, 100 wait.
            assert [settled(lines) for _ in range(4)] == [
                f"host_lost-{number}" for number in range(1, 5)
            ]
    assert log.read_text().count("it has 100 others pending") == 4
    # After ten seconds, it is sent again.
    assert {each.body["id"] for each in hanging.posted} == {"lab-own-host_lost-0"}


# ---- Whole jobs

SCRIPT = """\
import os, pathlib, time
folder = pathlib.Path(os.environ["FOLDER"])
(folder / ("up-" + os.environ["KIT_HOST"])).touch()
while not (folder / "go").exists():
    time.sleep(0.02)
"""


class Lab:
    """Hosts without torch that run a script, and their rendezvous, which notifies receivers."""

    def __init__(self, local: Hosts, receivers: list[dict[str, Any]]) -> None:
        self.local, self.folder = local, local.folder
        self.launch = write_programs(self.folder / "kit")
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.notify = wanted(*receivers)
        package = self.folder / "packages" / "tensorflow"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (self.folder / "own.py").write_text(SCRIPT)
        self.job = self.folder / "job.json"
        self.write("own.py")

    def write(self, script: str) -> None:
        job = {"name": "own", "command": [script], "framework": "tensorflow"}
        self.job.write_text(json.dumps(job))

    def serve(self) -> Task:
        environ = {"KIT_RENDEZVOUS": self.endpoint, "KIT_NOTIFY": self.notify}
        task = self.local.start("rendezvous", [self.launch, "rendezvous"], environ)
        task.expect("serves the coordinator")
        return task

    def host(self, name: str, nnodes: str) -> Task:
        (self.folder / f"up-{name}").unlink(missing_ok=True)
        checkpoints = self.folder / name
        checkpoints.mkdir(exist_ok=True)
        environ: dict[str, str | Path] = {
            "KIT_JOB": self.job,
            "KIT_RENDEZVOUS": self.endpoint,
            "KIT_NNODES": nnodes,
            "KIT_NPROC": "1",
            "KIT_HOST": name,
            "KIT_CHECKPOINTS": checkpoints,
            "PYTHONPATH": self.folder / "packages",
            "FOLDER": self.folder,
        }
        return self.local.start(name, [self.launch], environ)

    def up(self, *names: str) -> None:
        files = [self.folder / f"up-{name}" for name in names]
        wait_until(lambda: all(each.exists() for each in files), "the script")


def test_a_job_is_notified_of_exactly_once_and_is_not_delayed(tmp_path: Path) -> None:
    with hook() as good, hook(None) as hanging, hosts(tmp_path, cold=True) as local:
        lab = Lab(local, [{"url": good.url}, {"url": hanging.url, "on": ["completed"]}])
        first = lab.serve()
        tasks = {name: lab.host(name, "2:2") for name in ("n1", "n2")}
        lab.up("n1", "n2")
        tasks["n2"].end()
        wait_until(lambda: good.kinds == ["host_lost"], "the loss of n2")
        tasks["n1"].expect("stops its workers: n2 has closed its connection")
        # Another coordinator knows from n1 that it was sent.
        first.end()
        tasks["n1"].expect("the coordinator does not answer")
        again = lab.serve()
        again.expect("n1 has connected")
        tasks["n2"] = lab.host("n2", "2:2")
        lab.up("n1", "n2")
        (tmp_path / "go").touch()
        for task in tasks.values():
            assert task.wait() == 0, task.text
        wait_until(lambda: good.kinds == ["host_lost", "completed"], "the end")
        assert good.posted[0].body["message"] == "n2 has closed its connection"
        # The other receiver has not answered: the coordinator stays, and ends in time when it must.
        wait_until(lambda: hanging.kinds == ["completed"], "the other receiver")
        again.process.send_signal(signal.SIGTERM)
        assert again.wait() == 0
        assert "ends before every receiver was notified of completed" in again.text
        assert good.kinds == ["host_lost", "completed"]


def test_what_cannot_start_is_told_and_what_a_person_ends_is_not(tmp_path: Path) -> None:
    with hook() as good, hosts(tmp_path, cold=True) as local:
        lab = Lab(local, [{"url": good.url, "key": "HOOK_KEY"}])
        lab.notify = lab.notify.replace('"key": "HOOK_KEY"', '"key": "NO_KEY"')
        rendezvous = lab.serve()
        fault = "receiver 1 of notify cannot be used: the secret /run/secrets/NO_KEY"
        rendezvous.expect(fault)
        # People look at the lines of hosts.
        task = lab.host("n1", "1:1")
        task.expect(f"warning: {fault}")
        task.process.send_signal(signal.SIGTERM)
        assert task.wait() == 128 + signal.SIGTERM
        rendezvous.end()
        lab.notify = wanted({"url": good.url})
        rendezvous = lab.serve()
        # The process that sends is killed, as by the kernel.
        rendezvous.expect("notifies http")
        kill_all(descendants(rendezvous.process.pid))
        rendezvous.expect("the process that sends notifications has ended with exit code -9")
        task = lab.host("n1", "1:1")
        lab.up("n1")
        # The coordinator stays while a host is there.
        lab.write("nowhere.py")
        assert lab.host("n2", "1:1").wait() == 2

        def told() -> list[dict[str, Any]]:
            """What was posted, without the hosts of a busy machine that are silent for a moment."""
            return [each.body for each in good.posted if each.body["kind"] != "host_lost"]

        wait_until(lambda: bool(told()), "the failure")
        body = told()[0]
        assert (body["kind"], body["hosts"], body["exit_code"]) == ("failed", ["n2"], 2)
        assert "nowhere.py is not a file in" in body["message"]
        done = subprocess.run(
            [sys.executable, str(lab.launch), "notify", "session_ending", "in 10 minutes"],
            env={"KIT_RENDEZVOUS": lab.endpoint, "KIT_HOST": "n1"},
            check=False,
        )
        assert done.returncode == 0
        wait_until(lambda: len(told()) == 2, "the session")
        assert told()[1]["message"] == "in 10 minutes"
        task.process.send_signal(signal.SIGTERM)
        assert task.wait() == 128 + signal.SIGTERM
        rendezvous.end()
        assert [each["kind"] for each in told()] == ["failed", "session_ending"]
        lab.serve()
        # A job that ends by itself before it has begun to train.
        long = {"setup": ["exec sleep 600"], "max_duration": 1, "command": ["script.py"]}
        lab.job.write_text(json.dumps({"name": "own", **long}))
        assert lab.host("n1", "1:1").wait() == 0
        wait_until(lambda: len(good.posted) == 3, "the end of its time")
        assert good.kinds == ["failed", "session_ending", "ended"]


def test_a_host_tells_nobody_what_the_rendezvous_has_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container of a host that is left out starts again, and learns why."""
    told = list[str]()
    monkeypatch.setattr(start, "notify", lambda _environ, kind, *_: told.append(kind))
    monkeypatch.setenv("KIT_NNODES", "1:2")
    halt = Halt("worker", "rank 0 failed first on this host", 2, "n1")
    order = Order("wait", halt=halt)
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings: Any = SimpleNamespace(host="n1", rendezvous=server.getsockname())

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(encode(order))

        threading.Thread(target=answer).start()
        monkeypatch.setattr(start, "check_and_begin", lambda: ask_what_has_failed(settings))
        with pytest.raises(LaunchError, match="rank 0 failed first"):
            start.train()
    assert told == []
    monkeypatch.setattr(start, "check_and_begin", lambda: prepare(["exit 3"], os.environ))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(LaunchError, match="exit code 3"):
        start.train()
    assert told == ["failed"]
