"""A worker's side: it waits for a group, joins it, and leaves it.

A thread listens to the agent, as the training may block in a collective whose peer is lost. gloo's
own abort does not end such a wait (torch 2.13). Closing its connections does, within a
millisecond, except for messages that are in transfer (parallel/pending.py). Its listening
socket must stay open: gloo ends the process if that fails. NCCL's own abort does end its waits, and
takes twice as long if its connections are closed.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

from trainer.elastic import nccl
from trainer.elastic.pulse import Pulse
from trainer.elastic.workers import Place, place_line
from trainer.group.messages import Group, Order, decode
from trainer.parallel.device import own_device
from trainer.parallel.pending import GIVEN_UP, Pending
from trainer.parallel.world import World, form_world, hold_groups, leave_world

FORMING = timedelta(seconds=30)
"""Time for the store to answer, and for all workers to connect to each other."""
AGAIN = 0.2
"""Seconds between two attempts to connect, or to close a group's connections."""
CONNECT = 1.0
"""Timeout of a connection to a store, in seconds: TCP sends its first packet again after 1 s."""
GENTLE = 10
"""Attempts that leave NCCL's connections open; NCCL's own abort takes half a second."""


class Membership:
    """This worker's membership in groups."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Membership | None:
        """Connect to the agent of this host, if there is one."""
        return cls(environ) if environ.get("KIT_WORKERS") else None

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ, self._id = environ, environ["KIT_AGENT"]
        self._local_rank = int(environ["LOCAL_RANK"])
        start = int(environ["TORCHELASTIC_RESTART_COUNT"])
        left = int(environ["KIT_LEFT"])  # By the previous process of this local rank.
        self._place = Place(local_rank=self._local_rank, start=start, left=left)
        self._lock = threading.Condition()
        self._order = Order()
        self._before: set[int] = set()  # Sockets that are not of the present group.
        self._formed: set[int] | None = None  # All sockets after gloo has formed it.
        self._store: Any = None  # Served by this worker.
        self._pulse = Pulse(environ.get("KIT_PULSE", ""))
        self._pending = Pending()  # Of the present group.
        self.asked = False
        """Whether the workers must leave their group at the end of a step."""
        self.saves = False
        """Whether they must save first, as far as this worker knows."""
        self.ending = False
        """Whether this worker must end."""
        nccl.handle_errors(os.environ)
        faulthandler.register(signal.SIGUSR2)  # The agent asks where this process hangs.
        self._agent = socket.socket(socket.AF_UNIX)
        self._agent.connect(environ["KIT_WORKERS"])
        threading.Thread(target=self._listen, name="membership", daemon=True).start()

    def next_world(self, timeout: timedelta) -> World | None:
        """Wait for a group and join it; return None if this worker must end.

        `timeout` is that of collectives. Raises RuntimeError if the group fails while it forms.
        """
        if self._local_rank == 0 and self._store is None:
            self._serve_store()
        with self._lock:
            newest = max(self._place.generation, self._place.left)
            self._say(replace(self._place, ready=True))
            self._lock.wait_for(lambda: self.ending or self._order.generation > newest)
            if self.ending:
                return None
            assert self._order.group
            group, self.asked, self.saves = self._order.group, False, False
            self._before, self._formed = set(handles()), None
            self._pending = Pending(self._pulse.reach, self._pulse.end)
            self._pulse.begin(group.generation)
            self._say(replace(self._place, ready=False))
        world = self._form(group, timeout)
        if world.device.type == "cuda":
            self._formed = set(handles())
        members = tuple(member.agent for member in group.members)
        with self._lock:
            if self._place.left < group.generation:
                place = replace(self._place, generation=group.generation, members=members)
                self._say(replace(place, rank=world.rank))
        return world

    def _form(self, group: Group, timeout: timedelta) -> World:
        endpoint, _, port = group.members[0].store.rpartition(":")
        place = endpoint.strip("[]"), int(port)
        await_store(place, self._pending)
        store = distributed.TCPStore(  # type: ignore[attr-defined]
            *place, is_master=False, timeout=FORMING
        )
        prefixed = distributed.PrefixStore(  # type: ignore[attr-defined]
            str(group.generation), store
        )
        rank = group.first_rank(self._id) + self._local_rank
        size, pending = group.size, self._pending
        world = form_world(self._environ, timeout, rank, size, prefixed, pending)
        return replace(world, generation=group.generation, why=group.why)

    def leave(self, world: World, *, broken: bool = False, done: bool = False) -> None:
        """Leave a group, to wait for the next one or, if all is `done`, to exit.

        Abort a group that is `broken`: the other workers do too.
        """
        if broken:
            self._abort(world.generation)
            hold_groups(world)
        with suppress(RuntimeError):  # All ranks have passed the last barrier, or none needs it.
            leave_world(None if broken else world)
        if distributed.is_initialized():
            leave_world(None)
        with self._lock:
            if done:
                return
            newest = max(world.generation, self._place.left)
            self._say(replace(self._place, left=newest))

    def fail(self) -> None:
        """Leave a group that has not formed."""
        self._abort(self._order.generation)
        if distributed.is_initialized():
            leave_world(None)
        with self._lock:
            self._say(replace(self._place, left=max(self._order.generation, self._place.left)))

    def _serve_store(self) -> None:
        """Serve a store for the groups in which this worker has rank 0, at this host's address."""
        address = self._environ["KIT_ADDRESS"]
        # By default the master listens on all interfaces.
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family)
        port = listener.getsockname()[1]
        self._store = distributed.TCPStore(  # type: ignore[attr-defined]
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        endpoint = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self._place = replace(self._place, store=endpoint)

    def _say(self, place: Place) -> None:
        self._place = place
        with suppress(OSError):  # If this fails, the other thread ends this process.
            self._agent.sendall(place_line(place))

    def _listen(self) -> None:
        """Receive the agent's orders; exit when the agent does."""
        with suppress(OSError), self._agent.makefile("rb") as lines:
            for line in lines:
                self._take(decode(Order, line))
        if not self.ending:
            os._exit(1)

    def _take(self, order: Order) -> None:
        with self._lock:
            if order.kind == "join" and order.generation > self._order.generation:
                self._order = order
            elif order.kind == "leave" and order.generation == self._order.generation:
                self.asked, self.saves = True, order.save
            elif order.kind == "abort" and self._place.ready:
                if order.generation == self._order.generation > self._place.left:
                    self._order = Order()  # The group has failed before this worker joined it.
                    self._say(replace(self._place, left=order.generation))
            elif order.kind == "end":
                self.ending = self.asked = self.saves = True
            self._lock.notify_all()
            newest = max(self._order.generation, self._place.generation)
            inside = order.generation == newest > self._place.left and not self._place.ready
        if order.kind == "abort" and inside:
            self._abort(order.generation)

    def _abort(self, generation: int, tries: int = 0) -> None:
        """End all blocking calls of the present group; repeat until this worker has left it."""
        with self._lock:
            if self._place.ready or not self._place.generation <= generation > self._place.left:
                return
            for inode, handle in handles().items():
                if self._is_to_end(inode, tries):
                    shut_down(handle)
            self._pending.give_up()
        again = threading.Timer(AGAIN, self._abort, (generation, tries + 1))
        again.daemon = True  # New connections may open while the group forms.
        again.start()
        if distributed.is_initialized() and own_device(self._environ).type == "cuda":
            if tries == 0:
                nccl.dump(self._place.rank or 0)
            nccl.abort()

    def _is_to_end(self, inode: int, tries: int) -> bool:
        """Whether a socket is one of the present group that the abort shuts down."""
        if inode in self._before:
            return False
        return self._formed is None or inode in self._formed or tries > GENTLE


def await_store(place: tuple[str, int], pending: Pending) -> None:
    """Wait until a group's store answers: its host may be lost since the group was formed.

    TCPStore's connect blocks for its whole timeout if the host has no power, and no other thread
    can interrupt it. Raises RuntimeError once the group is given up, and after `FORMING`.
    """
    deadline = time.monotonic() + FORMING.total_seconds()
    while not pending.over and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(place, timeout=CONNECT):
            return
        time.sleep(AGAIN)
    raise RuntimeError(f"{GIVEN_UP}: no store answers at {place[0]}, port {place[1]}")


def handles() -> dict[int, int]:
    """The file descriptors of this process's sockets, by inode."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target = str(link.readlink())
            if target.startswith("socket:["):
                found[int(target[8:-1])] = int(link.name)
    return found


def shut_down(handle: int) -> None:
    """Shut down a TCP connection; its owner must still close the file descriptor."""
    with suppress(OSError), socket.socket(fileno=os.dup(handle)) as copy:
        tcp = copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
        if tcp and not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            copy.shutdown(socket.SHUT_RDWR)
