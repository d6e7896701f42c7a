"""Exchanges whose peer is lost: nobody waits for them until the group's timeout."""

import socket
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import distributed
from torch.futures import Future

from tests.trainer.hosts import wait_until
from trainer.elastic.membership import FORMING, await_store
from trainer.parallel.pending import GIVEN_UP, Pending
from trainer.parallel.world import PIECE, form_world, is_lost_peer, leave_world


def test_a_result_arrives() -> None:
    pending, exchange = Pending(), Future[int]()
    guarded = pending.guard(exchange)
    exchange.set_result(3)
    assert guarded.wait() == 3
    assert not pending.unfinished
    pending.give_up()
    assert guarded.wait() == 3


def test_an_error_arrives() -> None:
    pending = Pending()
    first = Future[int]()
    exchange = first.then(lambda _: int("gloo/transport"))
    guarded = pending.guard(exchange)
    first.set_result(0)
    with pytest.raises(RuntimeError, match="gloo/transport"):
        guarded.wait()


def test_a_wait_is_given_up() -> None:
    pending, exchange = Pending(), Future[int]()
    guarded = pending.guard(exchange)
    pending.give_up()
    with pytest.raises(RuntimeError, match=GIVEN_UP) as caught:
        guarded.wait()
    assert is_lost_peer(caught.value)
    assert pending.unfinished, "its thread still waits"
    with pytest.raises(RuntimeError, match=GIVEN_UP):
        pending.guard(Future[int]()).wait()
    exchange.set_result(3)  # Late: nobody takes it.
    with pytest.raises(RuntimeError, match=GIVEN_UP):
        guarded.wait()


def test_a_peer_that_sends_nothing() -> None:
    """A group of two in one process, whose second rank takes no part in the exchange."""
    store = distributed.HashStore()  # type: ignore[attr-defined]
    groups: dict[int, Any] = {}

    def join(rank: int) -> None:
        timeout = timedelta(seconds=20)
        groups[rank] = distributed.ProcessGroupGloo(store, rank, 2, timeout)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    pending, began = Pending(), time.monotonic()
    work = groups[0].allreduce([torch.ones(1000)])
    guarded = pending.guard(work.get_future())
    threading.Timer(0.2, pending.give_up).start()
    with pytest.raises(RuntimeError, match=GIVEN_UP):
        guarded.wait()
    assert time.monotonic() - began < 10
    groups[1].allreduce([torch.ones(1000)]).wait()
    wait_until(lambda: not pending.unfinished, "the end of the exchange")


def test_each_piece_of_a_broadcast_is_progress() -> None:
    """So that a host on a slow link does not look as if it hung."""
    reached: list[None] = []
    ended: list[None] = []
    pending = Pending(lambda: reached.append(None), lambda: ended.append(None))
    alone = form_world({}, timedelta(seconds=20), pending=pending)
    try:
        before = len(reached)
        content = bytes(2 * PIECE + 1)
        assert alone.broadcast(content, 0) == content
        assert len(reached) - before == 4, "its size, and three pieces"
        wait_until(lambda: len(ended) == len(reached), "the end of all")
    finally:
        leave_world(None)


def test_who_waits_for_the_store_of_a_lost_host_gives_up_with_the_group() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        place = server.getsockname()
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:  # A full queue: like a host without power, it drops what comes.
            each.setblocking(False)
            each.connect_ex(place)
        pending, began = Pending(), time.monotonic()
        threading.Timer(0.3, pending.give_up).start()
        with pytest.raises(RuntimeError, match=r"no store answers at 127\.0") as error:
            await_store(place, pending)
        assert is_lost_peer(error.value)
        assert time.monotonic() - began < FORMING.total_seconds() / 3
        for each in waiting:
            each.close()
    with socket.create_server(("127.0.0.1", 0)) as server:
        await_store(server.getsockname(), Pending())
