"""Hosts, addresses and GPUs that an inventory names twice."""

from __future__ import annotations

from kit import values
from kit.errors import INVENTORY, Fault, Loc
from kit.model import Host

SHORTEST = len("GPU-7af7a99b")
"""Characters of a UUID that is cut short."""


def refuse_duplicates(hosts: list[Host], faults: list[Fault]) -> None:
    """Reject names, addresses and GPUs that occur twice, and GPUs that are parts of others."""
    _refuse_pairs(hosts, faults)
    _refuse_beginnings(hosts, faults)
    _refuse_shared_cards(hosts, faults)


def _refuse_pairs(hosts: list[Host], faults: list[Fault]) -> None:
    names: dict[str, Loc] = {}
    reported = set[tuple[str, Loc, Loc]]()
    addresses: dict[str, Host] = {}
    uuids: dict[str, tuple[Host, int]] = {}
    for host in hosts:
        # Report one pair of hosts for two ranges that overlap.
        if host.name in names and _first(reported, "name", host.loc, names[host.name]):
            what = f"{host.name} is already described by {names[host.name][1]} (line {{line}})"
            fix = "leave it out of one of the two"
            faults.append(Fault(INVENTORY, host.loc, what, fix, names[host.name]))
        names.setdefault(host.name, host.loc)
        first = addresses.setdefault(host.address.lower(), host)
        if first is not host and _first(reported, "address", host.loc, first.loc):
            what = f"{host.address} is already the address of {first.name} (line {{line}})"
            fix = "give each host its own address"
            place = (*host.loc, "address")
            faults.append(Fault(INVENTORY, place, what, fix, (*first.loc, "address")))
        for index, gpu in enumerate(host.gpus):
            if not gpu.known:
                continue
            owner, at = uuids.setdefault(gpu.id.lower(), (host, index))
            if owner is not host or at != index:
                where = "" if owner is host else f" on {owner.name}"
                what = f"{gpu.id} is already listed{where} (line {{line}})"
                fix = f"give the UUID that `nvidia-smi -L` prints on {host.name}"
                place = (*host.loc, "gpus", index, "uuid")
                other = (*owner.loc, "gpus", at, "uuid")
                faults.append(Fault(INVENTORY, place, what, fix, other))


def _refuse_beginnings(hosts: list[Host], faults: list[Fault]) -> None:
    """Reject a UUID that is cut short beside one that it begins: they are the same GPU."""
    known = [(gpu.id, host, at) for host in hosts for at, gpu in enumerate(host.gpus) if gpu.known]
    alike: dict[str, list[tuple[str, Host, int]]] = {}
    for each in known:
        alike.setdefault(each[0].lower()[:SHORTEST], []).append(each)
    for cut, host, index in (each for each in known if values.cut_short(each[0])):
        for uuid, owner, at in alike[cut.lower()[:SHORTEST]]:
            if uuid.lower() != cut.lower() and values.meant_gpus(cut, [uuid]):
                where = "" if owner is host else f" on {owner.name}"
                what = f"{cut} is the beginning of {uuid}{where} (line {{line}})"
                fix = "keep one of the two, with the UUID that `nvidia-smi -L` prints"
                place = (*host.loc, "gpus", index, "uuid")
                other = (*owner.loc, "gpus", at, "uuid")
                faults.append(Fault(INVENTORY, place, what, fix, other))
                break


def _refuse_shared_cards(hosts: list[Host], faults: list[Fault]) -> None:
    """Reject a card beside one of its MIG instances, if the instance's UUID contains the card's."""
    cards = {gpu.id.lower(): (host, at) for host in hosts for at, gpu in enumerate(host.gpus)}
    for host in hosts:
        for index, gpu in enumerate(host.gpus):
            if not gpu.instance:
                continue
            card = cards.get(gpu.id.lower().removeprefix("mig-").partition("/")[0])
            if card is not None:
                owner, at = card
                what = f"{gpu.id} is a part of {owner.gpus[at].id} (line {{line}})"
                fix = "list the card or its instances"
                other = (*owner.loc, "gpus", at, "uuid")
                place = (*host.loc, "gpus", index, "uuid")
                faults.append(Fault(INVENTORY, place, what, fix, other))


def _first(reported: set[tuple[str, Loc, Loc]], what: str, one: Loc, other: Loc) -> bool:
    key = (what, one, other)
    new = key not in reported
    reported.add(key)
    return new
