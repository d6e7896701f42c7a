"""Parse what the NVIDIA driver writes to the kernel's log. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kit.doctor.facts import Loss, Sxid, Xid

_CONTINUED = re.compile(
    r"\n[^\n]*NVRM: +(?=\(PCI ID|installed in this system|fallen off the bus and)"
)
"""One message has several lines: "The NVIDIA GPU … / (PCI ID …) … has / fallen off the bus …"."""
_XID = re.compile(r"NVRM: (Xid \([^)]*\): (\d+).*)")
_SXID = re.compile(r"(nvidia-nvswitch\d*: SXid \([^)]*\): (\d+), (Non-fatal|Fatal)?.*)")
_LOSS = re.compile(
    r"NVRM: (?!Xid )(.*(?:fallen off the bus|GPU is lost|GPU_IS_LOST|RmInitAdapter failed"
    r"|probe routine failed).*)"
)
_BUS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}", re.IGNORECASE)


def read_xids(log: str) -> tuple[Xid, ...]:
    """Return the errors of GPUs."""
    return tuple(Xid(int(match[2]), match[1], at) for match, at in _search(_XID, log))


def read_losses(log: str) -> tuple[Loss, ...]:
    """Return the newest line on each lost GPU, or else the newest line without an address."""
    newest: dict[str, Loss] = {}
    for match, at in _search(_LOSS, log):
        bus = _BUS.search(match[1])
        loss = Loss(bus[0].lower() if bus else "", match[1].strip(" ."), at)
        newest[loss.bus] = loss
    placed = tuple(loss for loss in newest.values() if loss.bus)
    return placed or tuple(newest.values())


def read_sxids(log: str) -> tuple[Sxid, ...]:
    """Return the newest error of each number and NVSwitch.

    An error has more lines, with severity and data; only the first says whether it is fatal.
    """
    newest: dict[tuple[str, str], Sxid] = {}
    for match, at in _search(_SXID, log):
        key = (match[1].partition(")")[0], match[2])
        if match[3] or key not in newest:
            newest[key] = Sxid(int(match[2]), match[3] == "Fatal", match[1], at)
    return tuple(newest.values())


def _search(pattern: re.Pattern[str], log: str) -> Iterator[tuple[re.Match[str], float | None]]:
    """Yield the matching messages and their times."""
    for line in _CONTINUED.sub(" ", log).splitlines():
        if match := pattern.search(line):
            at = re.match(r"\[ *(\d+\.\d+)\]", line)
            yield match, float(at[1]) if at else None
