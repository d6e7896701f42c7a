"""Measured links in place of declared ones."""

from __future__ import annotations

from dataclasses import replace

from kit.measurements import Measurements
from kit.model import Host, Inventory


def valid(measured: Measurements, inventory: Inventory) -> Measurements:
    """Return the measurements of the hosts that still have their address."""
    return measured.of_hosts({host.name: host.address for host in inventory.hosts})


def with_measured_links(inventory: Inventory, measured: Measurements) -> Inventory:
    """Return the inventory with the measured speeds of its hosts' links, to three digits."""
    speeds = measured.link_speeds()
    hosts = tuple(_measured(host, speeds.get(host.name)) for host in inventory.hosts)
    return replace(inventory, hosts=hosts)


def _measured(host: Host, speed: float | None) -> Host:
    return replace(host, speed=int(float(f"{speed:.3g}"))) if speed else host
