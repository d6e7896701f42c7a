"""Which hosts and links are slow, and by how much."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from kit.measurements import HostRates, Link, Measurements
from kit.model import Host
from kit.values import show_speed
from trainer.contract.gpus import sheet_of

SLOW_LINK = 0.8
"""The share of the other links' median below which a link is slow."""
SLOW_HOST = 0.8
"""The same for GPUs of one model, which differ by some percent."""
SLOW_CPU = 0.7
SLOW_DISK = 0.5
"""The same for the CPU and the disk, which other processes use too."""
DECLARED = 0.8
"""A declared speed is wrong if a link has less than this share. TCP's payload is 94 % on Ethernet
with an MTU of 1,500 (1,448 of 1,538 bytes)."""
DATA_SHEET = 0.5
"""The share of the data sheet below which a GPU is slow. Large products reach 60 % to 90 %."""
FAR = 5.0
"""A round trip is long if it takes more than the median by this factor."""
LONG = 500e-6
"""Seconds; a shorter round trip is never long on an ordinary network."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something slow. `where` is a host, or two for a link; `factor` is how many times slower."""

    where: str
    what: str
    factor: float


def findings(measured: Measurements, hosts: Sequence[Host]) -> list[Finding]:
    """Return the slow hosts and links, the slowest first."""
    declared = {host.name: host.speed for host in hosts}
    all_findings = [
        *_links(measured.links),
        *_declared(measured, declared),
        *_round_trips(measured.links),
        *_rates("disk read", "MB/s", 1e6, _disks(measured.hosts), SLOW_DISK),
        *_rates("CPU training steps", "steps/s", 1, _cpus(measured.hosts), SLOW_CPU),
        *_gpus(measured.hosts),
    ]
    return sorted(all_findings, key=lambda finding: -finding.factor)


def _links(links: Sequence[Link]) -> Iterable[Finding]:
    """Report hosts whose links are all slow, and the single slow links of the other hosts."""
    blamed = set[str]()
    for name, own in _of_hosts(links).items():
        others = [link.speed for link in links if link not in own]
        best = max(link.speed for link in own)
        if others and best < SLOW_LINK * median(others):
            blamed.add(name)
            yield Finding(
                name, f"its links: {_compared(best, median(others))}", median(others) / best
            )
    rest = [link for link in links if not {link.one, link.other} & blamed]
    for link in rest:
        usual = median(each.speed for each in rest)
        if link.speed < SLOW_LINK * usual:
            one, other = link.one, link.other
            if link.backward < link.forward:
                one, other = other, one
            text = f"the link: {_compared(link.speed, usual)}"
            yield Finding(f"{one} → {other}", text, usual / link.speed)


def _of_hosts(links: Iterable[Link]) -> Mapping[str, list[Link]]:
    by_host = defaultdict[str, list[Link]](list)
    for link in links:
        by_host[link.one].append(link)
        by_host[link.other].append(link)
    return by_host


def _compared(speed: float, usual: float) -> str:
    return (
        f"{show_bits(speed)}, {usual / speed:.1f} times slower than the median {show_bits(usual)}"
    )


def show_bits(speed: float) -> str:
    """Format measured bits per second with three digits."""
    unit, size = ("Gbit/s", 1e9) if speed >= 1e9 else ("Mbit/s", 1e6)
    return f"{speed / size:.3g} {unit}"


def _declared(measured: Measurements, declared: Mapping[str, int]) -> Iterable[Finding]:
    for name, links in _of_hosts(measured.links).items():
        best = max(link.speed for link in links)
        if name in declared and best < DECLARED * declared[name]:
            text = (
                f"its fastest link: {show_bits(best)}, the inventory says "
                f"{show_speed(declared[name])}"
            )
            yield Finding(name, text, declared[name] / best)


def _round_trips(links: Sequence[Link]) -> Iterable[Finding]:
    if len(links) < 2:
        return
    usual = median(link.round_trip for link in links)
    for link in links:
        if link.round_trip > max(FAR * usual, LONG):
            factor = link.round_trip / usual
            text = (
                f"round trip: {link.round_trip * 1e3:.2f} ms, {factor:.1f} times the median "
                f"{usual * 1e3:.2f} ms"
            )
            yield Finding(f"{link.one} – {link.other}", text, factor)


def _rates(
    what: str, unit: str, size: float, rates: Mapping[str, float], share: float
) -> Iterable[Finding]:
    if len(rates) < 2:
        return
    usual = median(rates.values())
    for name, rate in rates.items():
        if rate < share * usual:
            text = (
                f"{what}: {rate / size:.3g} {unit}, {usual / rate:.1f} times slower than the "
                f"median {usual / size:.3g}"
            )
            yield Finding(name, text, usual / rate)


def _disks(hosts: Iterable[HostRates]) -> dict[str, float]:
    """Return the reading speeds of data folders, or of containers if no host has data."""
    of_data = {each.name: each.disk_read for each in hosts if each.disk_of == "data"}
    rates = of_data or {each.name: each.disk_read for each in hosts}
    return {name: rate for name, rate in rates.items() if rate}


def _cpus(hosts: Iterable[HostRates]) -> dict[str, float]:
    return {each.name: each.cpu_steps for each in hosts if each.cpu_steps}


def _gpus(hosts: Iterable[HostRates]) -> Iterable[Finding]:
    """Compare GPUs of one model with each other and with their data sheet."""
    models = defaultdict[str, dict[str, tuple[float, float]]](dict)
    for host in hosts:
        for number, gpu in enumerate(host.gpus):
            models[gpu.model][f"{host.name} GPU {number}"] = (gpu.operations, gpu.memory)
    for model, by_host in models.items():
        products = {name: rates[0] for name, rates in by_host.items()}
        copies = {name: rates[1] for name, rates in by_host.items()}
        yield from _rates(f"{model}, fp16 products", "TFLOPS", 1e12, products, SLOW_HOST)
        yield from _rates(f"{model}, memory", "GB/s", 1e9, copies, SLOW_HOST)
        sheet = sheet_of(model)
        if sheet is None:
            continue
        for name, (operations, memory) in by_host.items():
            for what, unit, size, rate, stated in (
                ("fp16 products", "TFLOPS", 1e12, operations, sheet.operations),
                ("memory", "GB/s", 1e9, memory, sheet.memory),
            ):
                if rate < DATA_SHEET * stated:
                    text = (
                        f"{model}, {what}: {rate / size:.3g} {unit}, the data sheet says "
                        f"{stated / size:.4g}"
                    )
                    yield Finding(name, text, stated / rate)
