"""The process that sends notifications, beside the coordinator, with a thread for each receiver.

It reads notices from its standard input, a socket. To the same socket it writes the id of each sent
or given-up notice, and the reasons of failures. It ends when the connection closes. A receiver
that hangs delays nothing else.
"""

import json
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trainer.launcher.output import say
from trainer.launcher.receivers import Receiver, Wanted, read_receivers, read_wanted
from trainer.launcher.webhook import Outcome, body_of, try_webhook

GIVEN_UP = 600.0  # Seconds after which a notification is not tried again.
MOST_WAITING = 100  # Number of notifications that wait for a receiver; then the oldest is dropped.


def try_once(receiver: Receiver, body: Mapping[str, Any]) -> Outcome:
    """Send a notification once, by a webhook or by Apprise."""
    if receiver.apprise is None:
        return try_webhook(receiver, body)
    try:
        sent = receiver.apprise.notify(
            body=body["body"], title=body["title"], notify_type=body["type"]
        )
    except Exception as error:  # From any service of Apprise; its message may contain tokens.
        return Outcome(f"does not accept the notification ({type(error).__name__})", again=True)
    return Outcome() if sent else Outcome("does not accept the notification", again=True)


class Delivery:
    """Sends notifications to one receiver, one at a time."""

    def __init__(
        self,
        receiver: Receiver,
        settle: Callable[[Mapping[str, Any]], None],
        warn: Callable[[str], None],
    ) -> None:
        """`settle` is called with each body that was sent, or given up."""
        self.receiver, self._settle, self._warn = receiver, settle, warn
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._change = threading.Condition()
        name = f"notify {receiver.shown}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add(self, body: Mapping[str, Any]) -> None:
        """Add a notification to the queue."""
        with self._change:
            dropped = self._waiting.popleft() if len(self._waiting) >= MOST_WAITING else None
            self._waiting.append(body)
            self._change.notify()
        if dropped:
            self._give_up(dropped, f"has {MOST_WAITING} others pending")

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting)
                body = self._waiting.popleft()
            self._send(body)

    def _send(self, body: Mapping[str, Any]) -> None:
        """Send a notification; retry after transient faults, with increasing pauses."""
        pause, told = 1.0, False
        while (outcome := try_once(self.receiver, body)).fault:
            pause = max(pause, outcome.wait)
            if not outcome.again or time.time() + pause > body["time"] + GIVEN_UP:
                self._give_up(body, outcome.fault)
                return
            if not told:
                told = True
                say(f"{self.receiver.shown} {outcome.fault}: {body['kind']} is sent again")
            time.sleep(pause)
            pause *= 2
        say(f"{self.receiver.shown} is notified: {body['kind']}")
        self._settle(body)

    def _give_up(self, body: Mapping[str, Any], fault: str) -> None:
        self._warn(f"{self.receiver.shown} is not notified of {body['kind']}: it {fault}")
        self._settle(body)


class Sender:
    """Passes each notice to the receivers of its kind."""

    def __init__(self, wanted: Wanted, connection: socket.socket) -> None:
        self._wanted, self._connection = wanted, connection
        self._left: dict[str, int] = {}  # Receivers that have not settled a notice, by its id.
        self._names: dict[str, str] = {}  # The notices' own ids, by those of their bodies.
        self._lock = threading.Lock()
        found = read_receivers(wanted, os.environ, self._warn)
        self._deliveries = [Delivery(each, self._settle, self._warn) for each in found]
        for each in self._deliveries:
            kinds = ", ".join(sorted(each.receiver.kinds))
            say(f"notifies {each.receiver.shown} of {kinds}")

    def run(self) -> None:
        """Process notices until the coordinator has ended."""
        with self._connection.makefile("rb") as lines:
            for line in lines:
                self._take(json.loads(line))

    def _take(self, notice: Mapping[str, Any]) -> None:
        body = body_of(self._wanted, notice)
        kind = notice["kind"]
        taking = [
            each for each in self._deliveries if kind in each.receiver.kinds or kind == "test"
        ]
        with self._lock:
            self._names[body["id"]] = notice["id"]
            self._left[body["id"]] = len(taking) + 1
        for each in taking:
            each.add(body)
        self._settle(body)

    def _settle(self, body: Mapping[str, Any]) -> None:
        with self._lock:
            name = str(body["id"])
            self._left[name] -= 1
            if self._left[name]:
                return
            del self._left[name]
            self._write(self._names.pop(name))

    def _warn(self, fault: str) -> None:
        """Log that a notification failed, also on the hosts of the job: people read their logs."""
        say(fault, error=True)
        with self._lock:
            self._write({"fault": fault})

    def _write(self, content: object) -> None:
        with suppress(OSError):  # The coordinator has ended; this process ends too.
            self._connection.sendall(json.dumps(content).encode() + b"\n")


def send_notices() -> None:
    """Send the notices that the coordinator writes, until it has ended."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # The coordinator waits for this process.
    wanted = read_wanted(os.environ["KIT_NOTIFY"])
    with socket.socket(fileno=os.dup(0)) as connection:
        Sender(wanted, connection).run()
    os._exit(0)  # Threads may wait for receivers.
