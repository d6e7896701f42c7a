"""The order in which engines are restarted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kit.model import Host

Wave = tuple[Host, ...]
"""Hosts that are restarted at the same time."""


def waves(hosts: Sequence[Host], managers: Collection[str], *, alone: bool) -> list[Wave]:
    """Return the hosts in the order of their restarts.

    `alone`: one host after the other, if a job of several hosts runs. Otherwise all workers restart
    at the same time, but managers still one after the other, as the Swarm needs a majority of them.
    `managers` are names; they come last, so that a mistake is found on a worker.
    """
    workers = [host for host in hosts if host.name not in managers]
    first: list[Wave] = [(host,) for host in workers] if alone else [tuple(workers)]
    last: list[Wave] = [(host,) for host in hosts if host.name in managers]
    return [wave for wave in first if wave] + last
