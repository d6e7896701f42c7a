"""Checks of the GPUs and of NVIDIA's toolkit. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kit.doctor import host_codes
from kit.doctor.checks.losses import check_bus, check_fabric, check_kernel_log, check_mig, titles
from kit.doctor.facts import GpuHealth, Report, Wanted, WantedHost
from kit.doctor.findings import Finding, note, ok, wrong
from kit.model import Gpu, Use
from kit.values import count, meant_gpus

THROTTLES: Mapping[int, str] = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Reasons in NVML's mask (nvml.h, nvmlClocksEventReason…) that settings do not cause."""
MONITORS = ("dcgm-exporter", "nvidia_gpu_exporter")
"""Images whose containers see all GPUs and compute nothing."""
LITTLE = 1024
"""MiB of a GPU's memory that a desktop uses."""
LOWERED = 0.98
"""The share of the default power below which a limit counts as lowered."""
CONFIG = "/etc/nvidia-container-runtime/config.toml"
KIND = "kit_gpu="
"""The kind of generic resource that kit's services reserve."""
RESOURCE = "DOCKER_RESOURCE_KIT_GPU"
"""The variable that Swarm sets for kit's kind of generic resource."""


def check(report: Report, want: WantedHost, wanted: Wanted) -> Iterator[Finding]:
    """Yield the findings of one host."""
    facts = report.facts
    gpus = tuple(gpu for gpu in want.host.gpus if gpu.use is not Use.NONE)
    if not gpus and not facts.gpus:
        yield from _unplanned(report)
        return
    if facts.gpu_fault:
        run = f"ssh {want.host.ssh} nvidia-smi; reboot after an upgrade of the driver"
        yield wrong(host_codes.SMI, report.host, facts.gpu_fault, run)
        return
    if gpus and not facts.gpus:
        evidence = "nvidia-smi lists no GPU" if facts.driver else "there is no nvidia-smi"
        yield wrong(host_codes.SMI, report.host, evidence, f"kit host prepare --run {report.host}")
        yield from check_bus(report, want)
        return
    if not facts.gpu_errors:
        yield ok(host_codes.SMI, report.host, f"driver {facts.driver}")
    yield from check_bus(report, want)
    yield from check_mig(report)
    yield from check_fabric(report, want)
    if gpus:
        yield from _present(report, want, gpus)
    if not facts.docker.fault:
        yield from _toolkit(report)
        yield from _settings(report)
        if wanted.swarm and gpus:
            yield from _offered(report, gpus, wanted)
        yield from _holders(report, wanted)
    yield from check_kernel_log(report)
    yield from _health(report)
    yield from _processes(report, gpus)


def _unplanned(report: Report) -> Iterator[Finding]:
    """Yield possible reasons why the inventory has no GPU of the host."""
    run = f"kit discover {report.host}, after the driver works"
    if report.facts.gpu_fault:
        yield note(host_codes.SMI, report.host, report.facts.gpu_fault, run)
    elif report.facts.unlisted:
        evidence = f"nvidia-smi lists no GPU, the PCI bus has {titles(report.facts.unlisted)}"
        yield note(host_codes.LISTED, report.host, evidence, run)


def _present(report: Report, want: WantedHost, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    uuids = [gpu.uuid for gpu in report.facts.gpus]
    listed = {uuid.lower() for uuid in uuids} | {str(gpu.index) for gpu in report.facts.gpus}
    missing = [gpu for gpu in gpus if gpu.id.lower() not in listed]
    for gpu in missing:
        if gpu.known and (meant := meant_gpus(gpu.id, uuids)):
            evidence = f"{gpu.id} is only the beginning of {' and '.join(meant)}"
            run = f"kit discover {report.host}, then kit render"
        else:
            evidence = f"{gpu.title} does not exist; `nvidia-smi -L` lists {', '.join(uuids)}"
            login = f"ssh {want.host.ssh} nvidia-smi -L"
            run = f"{login}; if it was taken out: kit discover {report.host}"
        yield wrong(host_codes.PRESENT, report.host, evidence, run)
    if not missing:
        yield ok(host_codes.PRESENT, report.host)


def _toolkit(report: Report) -> Iterator[Finding]:
    docker, facts = report.facts.docker, report.facts
    run = f"kit host prepare --run {report.host}"
    if not (facts.hook or facts.toolkit or docker.cdi):
        yield wrong(host_codes.TOOLKIT, report.host, "the toolkit is not installed", run)
    elif "nvidia" not in docker.runtimes and not facts.hook:
        yield wrong(host_codes.TOOLKIT, report.host, "Docker has no runtime nvidia", run)
    else:
        mode = report.vitals.toolkit.get("mode", "auto")
        yield ok(host_codes.TOOLKIT, report.host, f"{facts.toolkit or 'no version'}, mode {mode}")


def _settings(report: Report) -> Iterator[Finding]:
    settings = report.vitals.toolkit
    findings: list[Finding] = []
    if settings.get("accept-nvidia-visible-devices-envvar-when-unprivileged") == "false":
        evidence = "accept-nvidia-visible-devices-envvar-when-unprivileged is false"
        run = f"set it to true in {CONFIG}"
        findings.append(wrong(host_codes.MODE, report.host, evidence, run))
    mode = settings.get("mode", "auto")
    if mode == "cdi":
        evidence = f'the toolkit\'s mode is "{mode}": its devices can bypass NVIDIA_VISIBLE_DEVICES'
        findings.append(note(host_codes.MODE, report.host, evidence, f'mode = "auto" in {CONFIG}'))
    yield from findings or [ok(host_codes.MODE, report.host)]
    claimed = [each.strip() for each in settings.get("swarm-resource", "").split(",")]
    if RESOURCE in claimed:
        evidence = f"swarm-resource in {CONFIG} names {RESOURCE}"
        run = "take that line out: kit pins GPUs itself"
        yield wrong(host_codes.RESOURCE, report.host, evidence, run)
    else:
        yield ok(host_codes.RESOURCE, report.host)


def _offered(report: Report, gpus: tuple[Gpu, ...], wanted: Wanted) -> Iterator[Finding]:
    # Another kind, such as that of NVIDIA's playbook, is useless for kit's services.
    offered = {each.lower() for each in report.facts.docker.generic if each.startswith(KIND)}
    missing = [gpu.resource for gpu in gpus if f"{KIND}{gpu.resource}".lower() not in offered]
    default = report.facts.docker.default_runtime
    run = f"merge {wanted.tree}/hosts/{report.host}/daemon.json there, then restart Docker"
    if missing:
        evidence = f"{count(len(missing), 'GPU')} of {len(gpus)} not offered ({missing[0]} for one)"
        if others := _other_kinds(report, missing):
            evidence += f"; as after NVIDIA's Swarm playbook, Docker offers {', '.join(others)}"
            run = f"kit host prepare --run {report.host}, which keeps them and adds kit's kind"
        yield wrong(host_codes.OFFERED, report.host, evidence, run)
    else:
        yield ok(host_codes.OFFERED, report.host)
    if default != "nvidia":
        evidence = f"the default runtime is {default}, Swarm needs nvidia"
        yield wrong(host_codes.TOOLKIT, report.host, evidence, run)


def _other_kinds(report: Report, resources: list[str]) -> list[str]:
    """Return the generic resources of other kinds that name the same GPUs."""
    return [
        each
        for each in report.facts.docker.generic
        if not each.startswith(KIND) and meant_gpus(each.partition("=")[2], resources)
    ]


def _holders(report: Report, wanted: Wanted) -> Iterator[Finding]:
    """Yield running containers that see GPUs and are not part of the plan."""
    default = report.facts.docker.default_runtime
    held = False
    for each in report.vitals.containers:
        own = each.group in wanted.stacks or each.name.startswith("kit-doctor-")
        if own or any(name in each.image for name in MONITORS):
            continue
        if gpus := each.gpus(default):
            held = True
            evidence = f"the container {each.name} ({each.image}) sees {', '.join(gpus)}"
            run = "start it with NVIDIA_VISIBLE_DEVICES=void, or end it"
            yield wrong(host_codes.VOID, report.host, evidence, run)
    if report.vitals.containers and not held:
        yield ok(host_codes.VOID, report.host)


def _health(report: Report) -> Iterator[Finding]:
    for one in (_ecc, _rows, _throttle, _power, _persistence):
        findings = [each for gpu in report.vitals.health for each in one(report.host, gpu)]
        worse = [each for each in findings if each.evidence]
        yield from worse or findings[:1]


def _ecc(host: str, gpu: GpuHealth) -> Iterator[Finding]:
    if gpu.ecc_errors:
        evidence = f"{gpu.uuid} had {count(gpu.ecc_errors, 'uncorrected memory error')}"
        yield wrong(
            host_codes.ECC, host, evidence, f"nvidia-smi --gpu-reset -i {gpu.uuid} (as root)"
        )
    else:
        yield ok(host_codes.ECC, host)


def _rows(host: str, gpu: GpuHealth) -> Iterator[Finding]:
    reset = f"nvidia-smi --gpu-reset -i {gpu.uuid} (as root)"
    if gpu.failed:
        evidence = f"{gpu.uuid} has no spare row for a defective one"
        yield wrong(host_codes.ROWS, host, evidence, "replace the GPU")
    elif gpu.pending:
        yield wrong(host_codes.ROWS, host, f"{gpu.uuid} must be reset to replace a row", reset)
    else:
        yield ok(host_codes.ROWS, host)


def _throttle(host: str, gpu: GpuHealth) -> Iterator[Finding]:
    reasons = [name for bit, name in THROTTLES.items() if (gpu.throttled or 0) & bit]
    if reasons:
        evidence = f"{gpu.uuid} is slowed down: {', '.join(reasons)}"
        run = f"nvidia-smi -i {gpu.uuid} -q -d PERFORMANCE,TEMPERATURE,POWER"
        yield wrong(host_codes.THROTTLE, host, evidence, run)
    else:
        yield ok(host_codes.THROTTLE, host)


def _power(host: str, gpu: GpuHealth) -> Iterator[Finding]:
    limit, default = gpu.power_limit, gpu.power_default
    if limit and default and limit < LOWERED * default:
        evidence = f"{gpu.uuid} is limited to {limit:.0f} W of {default:.0f} W"
        run = f"nvidia-smi -i {gpu.uuid} -pl {default:.0f} (as root), unless that was intended"
        yield note(host_codes.POWER, host, evidence, run)
    else:
        yield ok(host_codes.POWER, host)


def _persistence(host: str, gpu: GpuHealth) -> Iterator[Finding]:
    if gpu.persistence is False:
        evidence = f"{gpu.uuid}: persistence mode is off"
        yield note(host_codes.PERSISTENCE, host, evidence, "nvidia-smi -pm 1 (as root)")
    else:
        yield ok(host_codes.PERSISTENCE, host)


def _processes(report: Report, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    planned = {gpu.id.lower() for gpu in gpus}
    own = {container.id for container in report.vitals.containers}
    busy = False
    for each in report.vitals.processes:
        if each.gpu.lower() not in planned or each.container in own:
            continue
        busy = True
        used = f" with {each.memory} MiB" if each.memory is not None else ""
        evidence = f"process {each.pid} ({each.name}) computes on {each.gpu}{used}"
        little = each.memory is not None and each.memory < LITTLE
        run = f"end it, or write `use: none` for {each.gpu}"
        yield (note if little else wrong)(host_codes.BUSY, report.host, evidence, run)
    if not busy:
        yield ok(host_codes.BUSY, report.host)
