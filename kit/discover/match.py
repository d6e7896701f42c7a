"""Match hosts with the inventory, and choose names and addresses of new hosts. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from kit import values
from kit.discover.facts import HostFacts
from kit.discover.found import Found
from kit.errors import InputError
from kit.model import Host, Inventory
from kit.values import WrongValueError


@dataclass(frozen=True, slots=True)
class Asked:
    """A host to ask; `known` is its entry in the inventory, None for a new host."""

    name: str
    ssh: str
    known: Host | None = None


def logins_of(logins: Sequence[str], inventory: Inventory | None) -> list[Asked]:
    """Return the hosts to ask: the given logins, or all hosts of the inventory.

    Raises:
        InputError: A login is not valid, or there are no hosts.
    """
    hosts = inventory.hosts if inventory else ()
    if not logins and not hosts:
        raise InputError(
            "there is no inventory", "name the hosts: kit discover user1@pc1 user2@pc2"
        )
    if not logins:
        return [Asked(host.name, host.ssh, host) for host in hosts]
    found = []
    for login in dict.fromkeys(logins):
        try:
            place = _place(values.login(login))
        except WrongValueError as error:
            raise InputError(error.what, error.fix) from None
        known = next(
            (host for host in hosts if login == host.ssh or place in {host.name, host.address}),
            None,
        )
        # The inventory decides how its hosts are reached.
        found.append(Asked(known.name, known.ssh, known) if known else Asked(login, login))
    return list({each.ssh: each for each in found}.values())


def _place(login: str) -> str:
    host = login.rpartition("@")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def named(answered: Sequence[tuple[Asked, HostFacts]], fast: str | None) -> list[Found]:
    """Return the hosts with their names and addresses for the inventory.

    `fast` is the network of a second, fast link that all hosts share. New hosts get their address
    in this network.

    Raises:
        InputError: Two new hosts have the same name.
    """
    found: dict[str, Found] = {}
    for asked, facts in answered:
        if asked.known:
            name, address = asked.known.name, asked.known.address
        else:
            name, address = _name(facts, asked.ssh), _address(facts, asked.ssh, fast)
        if name in found:
            what = f"{found[name].login} and {asked.ssh} have the same host name, {name}"
            raise InputError(what, "give one of them another name: hostnamectl set-hostname NAME")
        found[name] = Found(name, asked.ssh, address, facts, asked.known)
    return list(found.values())


def _name(facts: HostFacts, login: str) -> str:
    short = facts.hostname.partition(".")[0].lower()
    try:
        return values.dns_label(short)
    except WrongValueError as error:
        raise InputError(f"{login}: its host name: {error.what}", error.fix) from None


def _address(facts: HostFacts, login: str, fast: str | None) -> str:
    """Return the address for other hosts: in the fast network, else the one that SSH reached.

    If SSH used a forwarded port, it is the address of the interface with the default route.
    """
    own = [(each, address) for each in facts.interfaces for address in each.ipv4]
    in_fast = (str(one.ip) for _, one in own if fast and str(one.network) == fast)
    routed = (str(one.ip) for each, one in own if each.name == facts.route)
    reached = facts.reached
    if reached and ipaddress.ip_address(reached).is_loopback:
        reached = ""
    return next(in_fast, None) or reached or next(routed, None) or _place(login)
