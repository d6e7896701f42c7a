"""The meeting: the hosts of a round agree on the newest version."""

import asyncio
import json
import secrets
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from trainer.launcher.keeper.messages import LONGEST, TimedOut, connect, receive, send
from trainer.launcher.keeper.output import KeeperError, tell
from trainer.launcher.keeper.version import Version, newest, read_version

MEETING = 120.0  # Seconds for all hosts to arrive: each first reads its newest version.
LOST = 10.0  # Seconds for a host to reconnect after its connection broke.


class Place(NamedTuple):
    """A host's place in a round, from the variables of its workers."""

    address: str  # MASTER_ADDR and MASTER_PORT: new in each round.
    port: int
    run: str
    rank: int  # Of this host among `hosts`.
    hosts: int
    workers: int  # On this host.


async def lead(place: Place, own: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Collect the reports of all hosts, decide, and send the decision to them."""
    reports, writers = {0: own}, dict[int, StreamWriter]()
    changed = asyncio.Event()

    async def accept(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            rank, report = await receive_report(reader, place)
        except (OSError, KeyError, TypeError, ValueError):
            writer.close()
            return
        reports[rank], writers[rank] = report, writer
        changed.set()
        with suppress(OSError):
            await reader.read(1)
        if writers.get(rank) is writer:
            del reports[rank], writers[rank]
            changed.set()

    server = await asyncio.start_server(accept, place.address, place.port, limit=LONGEST)
    try:
        await all_present(reports, place.hosts, changed)
    except BaseException:
        for writer in writers.values():
            writer.close()
        raise
    finally:
        # Close it before the answers: the script's own store then needs the port.
        server.close()
    decision = decide([reports[rank] for rank in range(place.hosts)], paths)
    for rank in list(writers):
        writer = writers.pop(rank)
        with suppress(OSError):
            await send(writer, decision)
        writer.close()
    return decision


async def receive_report(reader: StreamReader, place: Place) -> tuple[int, dict[str, Any]]:
    """Receive the report of a host of this round; raises OSError for another round."""
    report = await receive(reader)
    rank = int(report["rank"])
    if (report["run"], report["hosts"]) != (place.run, place.hosts) or not 0 < rank < place.hosts:
        raise OSError("is of another round")
    return rank, report


async def all_present(reports: Mapping[int, object], hosts: int, changed: asyncio.Event) -> None:
    """Wait for the reports of all hosts; raises KeeperError if one leaves and does not return."""
    lost = 0.0
    while len(reports) < hosts:
        before = len(reports)
        changed.clear()
        with suppress(TimedOut):
            await asyncio.wait_for(changed.wait(), 1)
        lost = time.monotonic() if len(reports) < before else lost
        if lost and len(reports) <= before and time.monotonic() - lost > LOST:
            raise KeeperError("another host has left the meeting")


async def follow(place: Place, own: dict[str, Any]) -> dict[str, Any]:
    """Report to the host with group rank 0; return its decision."""
    lost = 0.0
    while True:
        try:
            reader, writer = await connect((place.address, place.port))
        except OSError:
            if lost and time.monotonic() - lost > LOST:
                raise KeeperError(f"{place.address} has left the meeting") from None
            await asyncio.sleep(0.1)
            continue
        try:
            await send(writer, own)
            return await receive(reader, MEETING)
        except OSError:
            lost = lost or time.monotonic()
            await asyncio.sleep(0.1)
        finally:
            writer.close()


def decide(reports: Sequence[dict[str, Any]], paths: Sequence[str]) -> dict[str, Any]:
    """Choose the newest version of all hosts; `reports` are in the order of their group ranks."""
    versions: dict[Version, list[Any]] = {}
    for report in reports:
        for each in report["versions"]:
            version = read_version(json.dumps(each), paths)
            versions.setdefault(version, []).append(report["endpoint"])
    chosen = newest(list(versions))
    if chosen:
        warn_of_others(chosen, list(versions))
    locations = [report["location"] for report in reports]
    number = 1 + max(int(report["term"]) for report in reports)
    return {
        "term": [number, time.time(), reports[0]["host"]],
        "key": secrets.token_hex(16),
        "peers": [[report["host"], report["endpoint"]] for report in reports],
        "writers": [
            rank for rank, at in enumerate(locations) if not at or locations.index(at) == rank
        ],
        "version": asdict(chosen) if chosen else None,
        "holders": versions[chosen] if chosen else [],
    }


def warn_of_others(chosen: Version, versions: Sequence[Version]) -> None:
    """Warn of versions that are not used, if only clocks decide which one is newer."""
    for each in versions:
        same = each.term.number == chosen.term.number and each.term != chosen.term
        if same and each.files != chosen.files:
            why = "hosts ran without each other" if chosen.term.number else "files differed before"
            kept = f"{chosen.shown()} is used, by the hosts' clocks"
            tell(f"warning: {why}: {kept}; {each.shown()} is not")


class Round:
    """The workers of a host that wait for the start; all of them must be present, and stay."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.present: set[int] = set()
        self.task: asyncio.Task[None] | None = None
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(self, why: str) -> None:
        """Answer all workers: "" means that the script may start."""
        if not self.ready.done():
            self.ready.set_result(why)
        if why and self.task:
            self.task.cancel()
