"""Match hosts with the inventory, and choose names and addresses of new hosts. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from kit import addresses
from kit.addresses import is_address, split_login
from kit.discover.facts import DiscoveredHost, HostFacts, InterfaceFacts
from kit.errors import InputError, KitError
from kit.model import Host, Inventory
from kit.values import WrongValueError, label_of

NAMELESS = frozenset({"localhost", "none", "unknown"})
"""Host names of machines that have no name of their own."""


@dataclass(frozen=True, slots=True)
class HostToAsk:
    """A host to ask; `known` is its entry in the inventory, None for a new host."""

    name: str
    ssh: str
    known: Host | None = None


def logins_of(logins: Sequence[str], inventory: Inventory | None) -> list[HostToAsk]:
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
        return [HostToAsk(host.name, host.ssh, host) for host in hosts]
    asked = []
    for login in dict.fromkeys(logins):
        try:
            ssh = addresses.login(login)
        except WrongValueError as error:
            raise InputError(error.what, error.fix) from None
        _, place, _ = split_login(ssh)
        known = next(
            (host for host in hosts if ssh == host.ssh or place in {host.name, host.address}),
            None,
        )
        # The inventory decides how its hosts are reached.
        asked.append(HostToAsk(known.name, known.ssh, known) if known else HostToAsk(login, ssh))
    return list({each.ssh: each for each in asked}.values())


def named(
    answered: Sequence[tuple[HostToAsk, HostFacts]], fast: str | None, written: Sequence[Host] = ()
) -> tuple[list[DiscoveredHost], list[KitError]]:
    """Return the hosts with names and addresses for the inventory, and the errors of other hosts.

    `fast` is the network of a second, fast link that all hosts share. New hosts get their address
    in this network. `written` are the hosts of the inventory.
    """
    hosts: list[DiscoveredHost] = []
    refused: list[KitError] = []
    for asked, facts in answered:
        try:
            each = _host_of(asked, facts, fast)
            if each.known is None:
                _refuse_second(each, hosts, written)
        except KitError as error:
            refused.append(error)
        else:
            hosts.append(each)
    return hosts, refused


def _host_of(asked: HostToAsk, facts: HostFacts, fast: str | None) -> DiscoveredHost:
    if asked.known:
        return DiscoveredHost(asked.known.name, asked.ssh, asked.known.address, facts, asked.known)
    return DiscoveredHost(
        _name(facts, asked.ssh), asked.ssh, _address(facts, asked.ssh, fast), facts
    )


def _refuse_second(
    new: DiscoveredHost, hosts: Sequence[DiscoveredHost], written: Sequence[Host]
) -> None:
    """Raise a KitError if another host has the name or the address of a new one."""
    others = [
        *((each.name, each.address, each.login) for each in hosts),
        *((each.name, each.address, each.ssh) for each in written),
    ]
    for name, address, login in others:
        if address == new.address:
            what = f"{new.login} is the same machine as {login}: {address} is the address of {name}"
            raise KitError(what, f"leave it out, or correct the address of {name}")
        if name == new.name:
            what = f"{login} and {new.login} have the same host name, {name}"
            raise KitError(what, "give one of them another name: hostnamectl set-hostname NAME")


def _name(facts: HostFacts, login: str) -> str:
    """Return the host's name as a DNS label: that of the machine, else that of the login."""
    _, place, _ = split_login(login)
    own = label_of(short_name(facts))
    if own and own not in NAMELESS:
        return own
    return label_of(f"host-{place}" if is_address(place) else place) or "host"


def short_name(facts: HostFacts) -> str:
    """Return the machine's own name, without its domain."""
    return facts.hostname.partition(".")[0]


def _address(facts: HostFacts, login: str, fast: str | None) -> str:
    """Return the address for other hosts: in the fast network, else the one that SSH reached.

    Kit's Swarms cannot use IPv6. If SSH reached an IPv6 address, the host's IPv4 address has
    priority: on the interface that SSH reached, on that of the default route, on a network card.

    Raises:
        KitError: The host has no address.
    """
    own = [(each, address.ip) for each in _in_order(facts) for address in each.ipv4]
    in_fast = (
        str(address.ip)
        for each in facts.interfaces
        for address in each.ipv4
        if fast and str(address.network) == fast
    )
    reached = facts.reached if is_address(facts.reached) else ""
    if reached and ipaddress.ip_address(reached).is_loopback:
        reached = ""
    if reached and ":" not in reached:
        return next(in_fast, None) or reached
    four = (str(ip) for _, ip in own if not ip.is_link_local)
    six = (one.partition("/")[0] for each in _in_order(facts) for one in each.addresses)
    _, place, _ = split_login(login)
    named = place if _is_name_or_address(place) else ""
    own_address = next(in_fast, "") or next(four, "") or reached or next(six, "") or named
    if not own_address:
        raise KitError(
            f"{login}: no network card has an address that other hosts reach",
            "describe it in inventory.yaml by hand: its `address`, and this `ssh`",
        )
    return own_address


def _in_order(facts: HostFacts) -> list[InterfaceFacts]:
    """Return the interfaces that other hosts may reach, the likeliest first."""
    first = facts.interface_of(facts.reached)
    likely = [each for each in facts.interfaces if each is first]
    likely += [each for each in facts.interfaces if each.name == facts.reached_by]
    likely += [each for each in facts.interfaces if each.name == facts.route]
    likely += [each for each in facts.interfaces if each.device and each.up]
    return list(dict.fromkeys(likely))


def _is_name_or_address(text: str) -> bool:
    try:
        addresses.address(text)
    except WrongValueError:
        return False
    return True
