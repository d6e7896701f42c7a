"""The pool as JSON: in plan.json, and in a Swarm config, which the controller reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import time
from typing import Any

from kit.plan.queue import PoolPlan
from kit.sharing import Hours, Person, Sharing


@dataclass(frozen=True, slots=True)
class Rules:
    """The pool without its state: the hosts with the ids of their GPUs, their hours, the people."""

    hosts: tuple[tuple[str, tuple[str, ...], Hours | None], ...]
    sharing: Sharing


def document_of(pool: PoolPlan) -> dict[str, Any]:
    """Return the pool for JSON. Times of a day are `HH:MM`, the half-life is in seconds."""
    return {
        "half_life": pool.sharing.half_life,
        "people": {person.name: _person(person) for person in pool.sharing.people},
        "hosts": {
            host.name: {"gpus": list(ids), **({"lend": _hours(host.lend)} if host.lend else {})}
            for host, ids in pool.hosts
        },
    }


def _person(person: Person) -> dict[str, float]:
    limit = {} if person.most is None else {"max_gpus": person.most}
    return {"share": person.share, **limit}


def _hours(hours: Hours) -> dict[str, object]:
    days = {"weekdays": hours.weekdays, "weekends": hours.weekends}
    lent = {name: [f"{each:%H:%M}" for each in times] for name, times in days.items() if times}
    return {"zone": hours.zone, **lent}


def rules_of(document: Mapping[str, Any]) -> Rules:
    """Return the pool of a document.

    Raises:
        LookupError, TypeError, ValueError: It is not a pool.
    """
    hosts = tuple(
        (name, tuple(host["gpus"]), _read_hours(host["lend"]) if "lend" in host else None)
        for name, host in document["hosts"].items()
    )
    people = tuple(
        Person(name, float(person["share"]), person.get("max_gpus"))
        for name, person in document["people"].items()
    )
    return Rules(hosts, Sharing(people, int(document["half_life"])))


def _read_hours(lend: Mapping[str, Any]) -> Hours:
    def times(days: str) -> tuple[time, time] | None:
        if days not in lend:
            return None
        begin, end = map(time.fromisoformat, lend[days])
        return begin, end

    return Hours(lend["zone"], times("weekdays"), times("weekends"))
