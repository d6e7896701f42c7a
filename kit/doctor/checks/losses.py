"""Checks for GPUs that are lost or unusable: PCI bus, MIG, NVSwitches, kernel's log. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kit.discover.facts import PciDevice
from kit.doctor import host_codes
from kit.doctor.facts import Report, WantedHost, Xid
from kit.doctor.findings import Finding, note, ok, wrong
from kit.values import count, show_age

HARDWARE_XIDS: Mapping[int, str] = {
    48: "an uncorrectable memory error",
    62: "the GPU's controller has halted",
    63: "a row of memory is to be replaced",
    64: "a row of memory could not be replaced",
    74: "an error of NVLink",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "the GPU's system processor does not answer",
    120: "an error of the GPU's system processor",
}
"""XIDs of hardware or firmware (NVIDIA's XID catalogue); most others come from applications."""
GONE = 79
STALLING_SXIDS = frozenset({11004, 12028, 19084})
"""SXids that are logged as not fatal, and after which GPUs hang (NVIDIA, Fabric Manager User Guide,
"Non-Fatal NVSwitch SXid Errors")."""
REGISTERED = frozenset({"Success", "N/A", "[N/A]"})
"""States of a GPU's registration with the fabric manager that are not errors."""


def check_bus(report: Report, want: WantedHost) -> Iterator[Finding]:
    """Compare nvidia-smi with the PCI bus, and yield its errors beside the GPUs that it lists."""
    facts = report.facts
    run = f"ssh {want.host.ssh} 'lspci -nnk -d 10de:; sudo dmesg | grep NVRM'; reset or reboot"
    for error in facts.gpu_errors:
        warning = error.upper().startswith("WARNING")
        yield (note if warning else wrong)(
            host_codes.LISTED, report.host, f"nvidia-smi: {error}", run
        )
    evidence = f"nvidia-smi lists {count(facts.cards, 'GPU')}, the PCI bus also has"
    # Somebody chose another driver; a GPU without a driver may have failed at its start.
    lent = [each for each in facts.unlisted if each.driver not in {"nvidia", ""}]
    if lost := [each for each in facts.unlisted if each not in lent]:
        yield wrong(host_codes.LISTED, report.host, f"{evidence} {titles(lost)}", run)
    if lent:
        yield note(host_codes.LISTED, report.host, f"{evidence} {titles(lent)}")
    if not facts.gpu_errors and not facts.unlisted:
        yield ok(host_codes.LISTED, report.host)


def titles(devices: Sequence[PciDevice]) -> str:
    """Return the names of PCI devices for messages."""
    return ", ".join(each.title for each in devices)


def check_mig(report: Report) -> Iterator[Finding]:
    """Yield the findings on GPUs with MIG on and without instances."""
    empty = [gpu.uuid for gpu in report.facts.gpus if gpu.split and not gpu.card]
    for uuid in empty:
        run = f"nvidia-smi -i {uuid} -mig 0 (as root), or make instances; kit discover"
        yield wrong(host_codes.MIG, report.host, f"{uuid} has MIG on and no instance", run)
    if not empty:
        yield ok(host_codes.MIG, report.host)


def check_fabric(report: Report, want: WantedHost) -> Iterator[Finding]:
    """Yield the finding on NVSwitches: GPUs since Hopper report their state, older ones do not."""
    vitals = report.vitals
    states = {
        f"{each.state}, {each.status}"
        for each in vitals.fabrics
        if each.state != "Completed" or each.status not in REGISTERED
    }
    switches = sum(each.switch for each in report.facts.pci)
    run = f"ssh {want.host.ssh} systemctl status nvidia-fabricmanager"
    if states:
        runs = "runs" if vitals.fabric_manager else "does not run"
        evidence = f"the fabric of the GPUs is not ready ({'; '.join(sorted(states))})"
        yield wrong(
            host_codes.FABRIC, report.host, f"{evidence}; the fabric manager {runs} here", run
        )
    elif switches and not vitals.fabric_manager:
        evidence = f"the host has NVSwitches ({switches}), and no fabric manager runs"
        # A fabric that is ready stays ready, but its errors are not handled.
        yield (note if vitals.fabrics else wrong)(host_codes.FABRIC, report.host, evidence, run)
    else:
        yield ok(host_codes.FABRIC, report.host)


def check_kernel_log(report: Report) -> Iterator[Finding]:
    """Yield the findings in the driver's messages since the start of the host."""
    xids = report.vitals.xids
    if xids is None:
        evidence = "the kernel's log cannot be read without root: XIDs and lost GPUs are not known"
        run = "sudo usermod -aG adm $USER there, and log in again"
        yield note(host_codes.XID, report.host, evidence, run)
        return
    newest = {(xid.number, xid.place): xid for xid in xids}
    for (number, _), xid in newest.items():
        age = _age(report, xid.at)
        if number in HARDWARE_XIDS:
            evidence = f"{xid.text} ({HARDWARE_XIDS[number]}){age}"
            run = "reset the GPU or reboot; replace it if it returns"
            yield wrong(host_codes.XID, report.host, evidence, run)
        else:
            yield note(host_codes.XID, report.host, f"{xid.text} (mostly an application's){age}")
    if not newest:
        yield ok(host_codes.XID, report.host)
    yield from _losses(report, xids)
    yield from _sxids(report)


def _age(report: Report, at: float | None) -> str:
    return f", {show_age(report.vitals.uptime - at)} ago" if at is not None else ""


def _losses(report: Report, xids: Sequence[Xid]) -> Iterator[Finding]:
    gone = [xid.place.lower() for xid in xids if xid.number == GONE]
    unexplained = [
        loss
        for loss in report.vitals.losses
        if not (loss.bus and any(place.endswith(loss.bus) for place in gone))
    ]
    for loss in unexplained:
        run = "switch the host off and on; look at the power and the seat of the card"
        yield wrong(host_codes.LOST, report.host, f"{loss.text}{_age(report, loss.at)}", run)
    if not unexplained:
        yield ok(host_codes.LOST, report.host)


def _sxids(report: Report) -> Iterator[Finding]:
    for each in report.vitals.sxids:
        evidence = f"{each.text}{_age(report, each.at)}"
        run = "reset all GPUs and NVSwitches, or reboot; replace the part if it returns"
        serious = each.fatal or each.number in STALLING_SXIDS
        yield (wrong if serious else note)(host_codes.SXID, report.host, evidence, run)
    if not report.vitals.sxids:
        yield ok(host_codes.SXID, report.host)
