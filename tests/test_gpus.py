# ruff: noqa: E501 - a message is one line
"""GPUs as hosts really have them: lost ones, names that are cut short, memory that is shared."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.commands.discover import show_hosts
from kit.discover.facts import HostFacts, PciDevice
from kit.discover.match import HostToAsk, named
from kit.discover.notes import notes_of
from kit.discover.parse import read_facts
from kit.discover.update import new_inventory
from kit.doctor.active import compute
from kit.doctor.active.gpus import COMPUTE, _busy
from kit.doctor.active.gpus import compute as try_gpus
from kit.doctor.checks.all import check_all
from kit.doctor.facts import Container, Fabric, Loss, Report, Vitals, Xid
from kit.doctor.findings import Finding, Verdict
from kit.doctor.parse import read_vitals
from kit.doctor.probe import sections
from kit.doctor.results import Computed, VisibleGpus
from kit.hosts.gpus import listed_gpus
from kit.model import Host
from kit.plan.gpus import capability, shares_memory
from kit.targets.local.gpus import visible_devices
from kit.targets.local.observe import local_gpus
from kit.values import cut_short, meant_gpus, names_gpu
from tests.sandbox import INVENTORY, JOB, ROOT, Project
from tests.test_discover import GV100, TITAN, WRITTEN, facts, inventory_of, printed, update
from tests.test_doctor import DOCKER, INFO, REPORT, VITALS, WANTED, gpu, of, tried

UUIDS = (
    "GPU-7af7a99b-2d3c-0d1c-6fc2-4d5b0e1a2c3d",
    "GPU-d8f6a6f1-93f8-5a9c-0d5a-1b2c3d4e5f60",
    "GPU-0e9b7c52-6a41-4f0e-8d27-5f6e7d8c9b0a",
)
"""Three cards that are left of four."""
LISTED = "\n".join(
    f"GPU {number}: NVIDIA A100-PCIE-40GB (UUID: {uuid})" for number, uuid in enumerate(UUIDS)
)
BUSES = "\n".join(
    f"{uuid}, 00000000:{bus}:00.0" for uuid, bus in zip(UUIDS, ("01", "61", "81"), strict=True)
)
LOST = "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error"
ERRORS = (
    LOST,
    "Unable to determine the device handle for GPU 0000:41:00.0: GPU is lost.  Reboot the system to recover this GPU",
    "Unable to determine the device handle for GPU3: 0000:41:00.0: Unknown Error",
    "Unable to determine the device handle for gpu 0000:41:00.0: Not Found",
    "GPU 3: NVIDIA A100-PCIE-40GB (UUID: Unknown Error)",
)  # fmt: skip
CARD, AUDIO, SWITCH = "0x030200", "0x040300", "0x068000"
BUS = "\n".join(f"0000:{number}:00.0 {CARD} nvidia" for number in ("01", "41", "61", "81"))


def notes(found: HostFacts) -> str:
    return "\n".join(notes_of(named([(HostToAsk("pc2", "user2@pc2"), found)], None)[0]))


def judged(found: HostFacts, **vitals: Any) -> list[Finding]:
    """What is not well with a host that has these facts and, by default, these GPUs planned."""
    report = Report("pc2", found, replace(VITALS, **vitals), 0.3, 0.0)
    gpus = tuple(gpu(each.uuid) for each in found.gpus)
    host = replace(WANTED.hosts[0], host=replace(WANTED.hosts[0].host, gpus=gpus), uses=())
    wanted = replace(WANTED, swarm=False, hosts=(host,))
    return [each for each in check_all([report], wanted) if each.verdict is not Verdict.OK]


# -------- Lost GPUs


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("first", [True, False])
def test_a_line_that_lists_no_gpu_is_told(error: str, *, first: bool) -> None:
    """discover wrote three GPUs, and doctor said that nvidia-smi works."""
    both = (error, LISTED) if first else (LISTED, error)
    found = facts(gpus="\n".join(both), docker=DOCKER, docker_info=INFO)
    assert [each.uuid for each in found.gpus] == list(UUIDS)
    assert f"pc2: nvidia-smi: {error}" in notes(found)
    (finding,) = judged(found)
    assert (finding.code.id, finding.verdict) == ("KIT-GPU-018", Verdict.WRONG)
    assert error in finding.evidence
    codes = {each.code.id for each in check_all([replace(REPORT, facts=found)], WANTED)}
    assert "KIT-GPU-001" not in codes


def test_all_lines_of_an_nvidia_smi_that_fails_are_told() -> None:
    said = (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.90"
    )
    found = facts(gpus=said, gpu_query="")
    assert found.gpu_fault == said.replace("\n", "; ")
    assert facts(gpus=f"{LOST}\nNo devices were found").gpu_fault == LOST
    warning = "WARNING: infoROM is corrupted at gpu 0000:81:00.0"
    corrupt = facts(gpus=f"{LISTED}\n{warning}", docker=DOCKER, docker_info=INFO)
    assert [each.verdict for each in judged(corrupt)] == [Verdict.NOTE]


MISSING: list[tuple[str, str, str, str]] = [
    ("lost, the driver holds it", BUS, "0000:41:00.0 (driver nvidia)", "wrong"),
    ("lost at its start", BUS.replace("41:00.0 0x030200 nvidia", "41:00.0 0x030200"), "0000:41:00.0 (no driver)", "wrong"),
    ("lent to a virtual machine", BUS.replace("41:00.0 0x030200 nvidia", "41:00.0 0x030200 vfio-pci"), "0000:41:00.0 (driver vfio-pci)", "note"),
    ("all listed", BUS.replace(f"0000:41:00.0 {CARD} nvidia\n", ""), "", ""),
    ("other functions", f"0000:01:00.0 {CARD} nvidia\n0000:01:00.1 {AUDIO} snd_hda_intel\n0000:01:00.2 0x0c0330 xhci_hcd", "", ""),
    ("no PCI devices, as of a Jetson", "", "", ""),
]  # fmt: skip


@pytest.mark.parametrize("by_address", [True, False])
@pytest.mark.parametrize(
    ("bus", "missing", "verdict"), [each[1:] for each in MISSING], ids=[each[0] for each in MISSING]
)
def test_the_bus_is_compared_with_nvidia_smi(
    bus: str, missing: str, verdict: str, *, by_address: bool
) -> None:
    buses = BUSES if by_address else "".join(f"{uuid}, [N/A]\n" for uuid in UUIDS)
    found = facts(gpus=LISTED, gpu_bus=buses, pci=bus, docker=DOCKER, docker_info=INFO)
    findings = judged(found)
    assert [each.verdict for each in findings] == [verdict] * bool(verdict)
    if by_address:
        assert [each.title for each in found.unlisted] == [missing] * bool(missing)
    if by_address and missing:
        assert findings[0].evidence == f"nvidia-smi lists 3 GPUs, the PCI bus also has {missing}"
        assert f"the PCI bus also has {missing}" in notes(found)


def test_a_host_whose_gpus_are_all_missing_is_no_host_without_gpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    found = facts(gpus="No devices were found", gpu_query="", pci=BUS)
    assert (found.gpus, found.gpu_fault, len(found.unlisted)) == ((), "", 4)
    show_hosts([(HostToAsk("pc2", "pc2"), found)])
    assert "none, 4 not listed" in capsys.readouterr().out
    (finding,) = judged(found)
    assert (finding.code.id, finding.verdict) == ("KIT-GPU-018", Verdict.NOTE)
    broken = facts(gpus="NVIDIA-SMI has failed because it couldn't communicate", gpu_query="")
    assert [each.code.id for each in judged(broken)] == ["KIT-GPU-001"]


SMI = f"""\
#!/bin/sh
case "$*" in
    -L) printf '%s\\n' {" ".join(f"'{line}'" for line in LISTED.splitlines())}; echo '{LOST}' >&2 ;;
    *pci.bus_id*) printf '%s\\n' {" ".join(f"'{line}'" for line in BUSES.splitlines())}; exit 15 ;;
    *mig*|*fabric*) echo 'Field "fabric.state" is not a valid field to query.'; exit 2 ;;
    *memory.total*) echo '{UUIDS[0]}, 0, NVIDIA A100-PCIE-40GB, 40960, 470.82' ;;
esac
"""


def run_probe(folder: Path, smi: str, names: set[str], **changes: str) -> HostFacts:
    """Run some sections of the probe with a stand-in of nvidia-smi and of sysfs."""
    (folder / "nvidia-smi").write_text(smi)
    (folder / "nvidia-smi").chmod(0o755)
    script = (ROOT / "kit" / "discover" / "probe.sh").read_text()
    for old, new in {"/sys/bus/pci/devices": str(folder / "pci"), **changes}.items():
        assert old in script
        script = script.replace(old, new)
    run = sections(script, {*names, "gpus", "end"})
    environment = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(["sh"], input=run, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return read_facts(done.stdout)


def test_the_probe_asks_the_bus_and_older_drivers(tmp_path: Path) -> None:
    drivers = tmp_path / "drivers"
    (drivers / "nvidia").mkdir(parents=True)
    for address, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030000"),
        ("0000:01:00.1", "0x10de", AUDIO),
        ("0000:41:00.0", "0x10de", CARD),
        ("0000:41:00.4", "0x10de", CARD),  # A virtual function.
        ("0000:61:00.0", "0x10de", CARD),
        ("0000:81:00.0", "0x10de", CARD),
        ("0000:c1:00.0", "0x10de", SWITCH),
        ("0000:02:00.0", "0x8086", "0x030000"),
    ):
        device = tmp_path / "pci" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
        (device / "driver").symlink_to(drivers / "nvidia")
    (tmp_path / "pci/0000:41:00.4/physfn").symlink_to(tmp_path / "pci/0000:41:00.0")
    found = run_probe(tmp_path, SMI, {"gpu-query", "gpu-bus", "gpu-mig", "pci"})
    assert (found.gpu_errors, found.driver) == ((LOST,), "470.82")
    assert [each.title for each in found.unlisted] == ["0000:41:00.0 (driver nvidia)"]
    assert [each.address for each in found.pci if each.switch] == ["0000:c1:00.0"]


def test_an_nvidia_smi_that_hangs_is_asked_once(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    smi = f"#!/bin/sh\necho call >>{calls}\nexec sleep 60\n"
    found = run_probe(
        tmp_path, smi, {"gpu-query", "gpu-bus", "cuda"}, **{"timeout 30": "timeout 3"}
    )
    assert found.gpu_fault == "nvidia-smi does not answer within 30 s"
    assert calls.read_text() == "call\n"


def test_this_machine_keeps_the_gpus_beside_a_lost_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho '{LISTED.splitlines()[0]}'; echo '{LOST}'; exit 15\n")
    smi.chmod(0o755)
    assert local_gpus() == [UUIDS[0]]


# -------- Names

CUT = TITAN[:12]
"""As `nvidia-smi -a | grep UUID | awk '{print substr($4,0,12)}'` of recipes for Swarm prints it."""
TWIN = f"{CUT}-ffff-5f84-a541-aa32df2b2a6f"
BARE = "4f6b9ae2-9f0e-5c3d-8a51-27b9c0d1e2f3"


@pytest.mark.parametrize("cut", [CUT, CUT.replace("db1c6a2f", "DB1C6A2F"), TITAN[:-1], TITAN[:9]])
def test_discover_writes_a_uuid_that_is_cut_short_in_full(cut: str) -> None:
    """It added both GPUs once more, and the plan had four ranks on two GPUs."""
    listed = f"\n      - {{uuid: {cut}, use: inference}}  # serves\n      - uuid: '{GV100[:12]}'"
    before = WRITTEN.format(gpus=listed)
    text, said = update(before, facts())
    assert text == before.replace(f"uuid: {cut},", f"uuid: {TITAN},").replace(
        f"'{GV100[:12]}'", GV100
    )
    assert said == ()
    assert update(text, facts()) == (text, ())


def test_a_beginning_of_two_gpus_is_refused() -> None:
    both = f"GPU 0: T (UUID: {TITAN})\nGPU 1: T (UUID: {TWIN})"
    before = WRITTEN.format(gpus=f"[{{uuid: {CUT}}}]")
    text, said = update(before, facts(gpus=both))
    assert text == before
    assert said == (
        f"pc2: {CUT} is the beginning of {TITAN} and {TWIN}: write the one that you mean",
    )


def test_two_names_of_one_gpu_are_told() -> None:
    before = WRITTEN.format(gpus=f"[{{uuid: {TITAN[:9]}}}, {{uuid: {TITAN}}}]")
    text, said = update(before, facts(gpus=f"GPU 0: T (UUID: {TITAN})"))
    assert text == before
    assert said == (f"pc2: {TITAN[:9]} and {TITAN} are the same GPU: take one of them out",)


def test_the_doctor_knows_the_gpu_of_a_cut_uuid() -> None:
    host = replace(WANTED.hosts[0].host, gpus=(gpu(CUT), gpu(GV100)))
    wanted = replace(WANTED, hosts=(replace(WANTED.hosts[0], host=host),))
    found = [each for each in check_all([REPORT], wanted) if each.code.id == "KIT-GPU-002"]
    assert [(each.verdict, each.evidence, each.run) for each in found] == [
        (
            Verdict.WRONG,
            f"{CUT} is only the beginning of {TITAN}",
            "kit discover pc2, then kit render",
        )
    ]


def test_gpus_that_another_kind_of_resource_offers_are_not_offered() -> None:
    generic = (f"NVIDIA-GPU={TITAN}", f"kit_gpu={GV100}")
    found = replace(REPORT.facts, docker=replace(REPORT.facts.docker, generic=generic))
    assert of(docker=found.docker) == {"KIT-GPU-006": Verdict.WRONG}


def test_this_machines_gpus_are_found_by_a_beginning(project: Project) -> None:
    inventory = INVENTORY.replace("GPU-a", CUT).replace("GPU-b", GV100.upper())
    job = project.write(inventory, {"j": JOB}).workload()
    devices = visible_devices(job, ["GPU-c", GV100, TITAN])
    assert [device.split(",")[0] for device in devices.values()] == [TITAN, GV100]


def test_a_plan_with_a_cut_uuid_says_so(project: Project) -> None:
    plan = project.write(INVENTORY.replace("GPU-a", CUT), {"j": JOB}).plan()
    assert plan.notes == (f"pc1: cut short: {CUT}; `kit discover pc1` writes UUIDs in full",)


@pytest.mark.parametrize(
    ("name", "is_name", "is_cut"),
    [
        (TITAN, True, False),
        (CUT, True, True),
        (BARE, True, False),
        (BARE.upper(), True, False),
        ("MIG-aaaa1111-2222-5333", True, True),
        ("MIG-GPU-5f3a1c9e/1/0", True, False),
        ("GPU-a", True, False),
        ("0", False, False),
        ("all", False, False),
    ],
)
def test_names_of_gpus(name: str, *, is_name: bool, is_cut: bool) -> None:
    assert (names_gpu(name), cut_short(name)) == (is_name, is_cut)


def test_a_whole_uuid_is_no_beginning_of_another() -> None:
    assert meant_gpus("GPU-a", ["GPU-ab", "GPU-A"]) == ["GPU-A"]
    assert meant_gpus("GPU-a", ["GPU-ab", "GPU-ac"]) == ["GPU-ab", "GPU-ac"]


# -------- GPUs inside a processor

ORIN = f"GPU 0: Orin (nvgpu) (UUID: {BARE})"


def test_a_uuid_may_lack_its_prefix() -> None:
    """The listing was taken for an error of nvidia-smi."""
    found = facts(gpus=ORIN, gpu_query=f"{BARE}, 0, Orin (nvgpu), [N/A], 540.4.0")
    assert [(each.uuid, each.model) for each in found.gpus] == [(BARE, "Orin (nvgpu)")]
    assert (found.gpu_fault, found.gpu_errors, listed_gpus(ORIN)) == ("", (), [BARE])
    text = new_inventory("pool", "compose", named([(HostToAsk("a", "a"), found)], None)[0]).text
    assert [each.id for each in inventory_of(text).hosts[0].gpus] == [BARE]
    health = f"@@ gpu-health\n{BARE}, [N/A], [N/A], [N/A], [N/A]\n"
    assert [each.uuid for each in read_vitals(health).health] == [BARE]


def test_memory_that_is_the_hosts_is_taken_from_the_host() -> None:
    """Checks of memory were skipped, and nothing said so."""
    spark = f"{TITAN}, 0, NVIDIA GB10, [N/A], 580.95.05"
    memory = "MemTotal:       125420044 kB\nSwapTotal:       0 kB"
    found = facts(gpus=f"GPU 0: NVIDIA GB10 (UUID: {TITAN})", gpu_query=spark, memory=memory)
    assert (found.gpus[0].memory, found.driver) == (119 * 2**30, "580.95.05")
    said = "GB10 has no memory of its own: the GPU, /dev/shm and the page cache share 119GiB of the"
    assert said in notes(found)
    text = new_inventory("pool", "compose", named([(HostToAsk("a", "a"), found)], None)[0]).text
    assert f"- {{uuid: {TITAN}, model: GB10, memory: 119GiB}}" in text
    told = check_all([replace(REPORT, facts=found)], WANTED)
    (shared,) = (each.evidence for each in told if each.code.id == "KIT-HOST-008")
    assert shared == "GB10: the GPU, /dev/shm and the page cache share 119.6 GiB"
    lost = f"{TITAN}, 0, NVIDIA A100, [GPU is lost], 580.95.05"
    assert facts(gpus=f"GPU 0: A100 (UUID: {TITAN})", gpu_query=lost).gpus[0].memory is None


@pytest.mark.parametrize("memory", [", memory: 119GiB", ""])
def test_the_plan_says_what_shares_the_memory(project: Project, memory: str) -> None:
    inventory = INVENTORY.replace("uuid: GPU-b", f"uuid: GPU-b, model: GB10{memory}")
    said = [each for each in project.write(inventory, {"j": JOB}).plan().notes if "GB10" in each]
    size = "share 119GiB" if memory else "share that of the host"
    assert [size in each for each in said] == [True]
    assert ("with `memory:` of the GPU" in said[0]) is not bool(memory)


def gpt_on(project: Project, model: str, shared: str) -> str:
    """What `kit plan` says of a gpt of 3 billion parameters on GPUs of 60 GiB."""
    gpu = f"{{index: 0, model: {model}, memory: 60GiB}}"
    hosts = f"hosts: {{a: {{address: 10.0.0.1, gpus: [{gpu}]}}}}"
    options = "options: {layers: 32, heads: 22, width: 2816}"
    train = (
        f"dataset: text, path: a.txt, model: gpt, context: 512, batch_size: 1, epochs: 1, {options}"
    )
    job = f"image: t:1\ntrain: {{{train}, optimizer: adamw, learning_rate: 0.001}}\n"
    job += f"limits: {{shared_memory: {shared}}}\n"
    result = project.write(f"cluster: lab\n{hosts}\n", {"j": job}).kit("plan")
    return result.err + result.out


def test_a_models_memory_is_compared_with_what_dev_shm_leaves(project: Project) -> None:
    assert "jobs/j.yaml" not in gpt_on(project, "A100", "16GiB")
    assert "jobs/j.yaml" not in gpt_on(project, "GB10", "1GiB")
    said = gpt_on(project, "GB10", "16GiB")
    assert "of 47.2 GB of its GPU" in said
    assert "; it uses its host's memory, of which /dev/shm may take 16GiB" in said


@pytest.mark.parametrize(
    ("model", "number"),
    [("GB10", (12, 1)), ("Thor", (11, 0)), ("Orin (nvgpu)", (8, 7)), ("Xavier", (7, 2))],
)
def test_models_of_processors_are_known(model: str, number: tuple[int, int]) -> None:
    known = capability(model)
    assert known
    assert (known[1], shares_memory(model), shares_memory("GB200")) == (number, True, False)


# -------- MIG, NVSwitch, the kernel's log


def test_mig_without_instances_is_told() -> None:
    card = f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {UUIDS[0]})"
    empty = facts(gpus=card, gpu_mig=f"{UUIDS[0]}, Enabled", docker=DOCKER, docker_info=INFO)
    assert f"{UUIDS[0]} has MIG on and no instance" in notes(empty)
    assert [(each.code.id, each.verdict) for each in judged(empty)] == [
        ("KIT-GPU-020", Verdict.WRONG)
    ]
    instance = "  MIG 1g.5gb      Device  0: (UUID: MIG-aaaa1111-2222-5333-8444-555566667777)"
    used = facts(gpus=f"{card}\n{instance}", gpu_mig=f"{UUIDS[0]}, Enabled",
                 docker=DOCKER, docker_info=INFO)  # fmt: skip
    off = facts(gpus=card, gpu_mig=f"{UUIDS[0]}, [N/A]", docker=DOCKER, docker_info=INFO)
    assert judged(used) == judged(off) == []


SWITCHES = tuple(PciDevice(f"0000:{bus}:00.0", SWITCH, "nvidia-nvswitch") for bus in ("c1", "c2"))
READY = Fabric(TITAN, "Completed", "Success")
FABRICS: list[tuple[str, tuple[PciDevice, ...], tuple[Fabric, ...], bool, str]] = [
    ("no NVSwitch", (), (), False, ""),
    ("A100, running", SWITCHES, (), True, ""),
    ("A100, not running", SWITCHES, (), False, "wrong"),
    ("H100, ready", SWITCHES, (READY,), True, ""),
    ("H100, ended since", SWITCHES, (READY,), False, "note"),
    ("waits", SWITCHES, (READY, replace(READY, state="In Progress", status="N/A")), True, "wrong"),
    ("B200, whose switches are no PCI devices", (), (replace(READY, state="Not Started"),), False, "wrong"),
    ("failed", SWITCHES, (replace(READY, status="Insufficient Resources"),), True, "wrong"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pci", "fabrics", "runs", "verdict"),
    [each[1:] for each in FABRICS],
    ids=[f[0] for f in FABRICS],
)
def test_the_fabric_of_nvswitches(
    pci: tuple[PciDevice, ...], fabrics: tuple[Fabric, ...], *, runs: bool, verdict: str
) -> None:
    found = of({"fabrics": fabrics, "fabric_manager": runs}, pci=pci)
    assert found == ({"KIT-GPU-021": verdict} if verdict else {})


def test_the_fabric_is_read_where_the_driver_knows_it() -> None:
    def read(text: str) -> Vitals:
        return read_vitals(f"@@ gpu-fabric\n{text}\n@@ fabric-manager\ninactive\n")

    assert read(f"{TITAN}, Completed, Success").fabrics == (READY,)
    assert read(f"{TITAN}, [N/A], [N/A]\n{GV100}, Not Supported, N/A").fabrics == ()
    assert read('Field "fabric.state" is not a valid field to query.').fabrics == ()
    assert [
        read_vitals(f"@@ fabric-manager\n{each}\n").fabric_manager
        for each in ("inactive", "failed", "active", "inactive\nrunning", "")
    ] == [False, False, True, True, False]


KERNEL = """\
[    1.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15
[   90.000000] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x25:0x40:1470)
[   90.000001] NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0
[  100.000000] NVRM: GPU at PCI:0000:41:00: GPU-7af7a99b-2d3c-0d1c-6fc2-4d5b0e1a2c3d
[  100.100000] NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
[  100.200000] NVRM: GPU 0000:41:00.0: GPU has fallen off the bus.
[  101.200000] NVRM: Xid (PCI:0000:41:00): 45, pid=1234, name=python3, Ch 00000001
[  102.200000] NVRM: Xid (PCI:0000:41:00): 45, pid=1234, name=python3, Ch 00000002
[  103.200000] NVRM: Xid (PCI:0000:61:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
[  200.000000] NVRM: GPU at PCI:0000:81:00: the GPU has fallen off the bus
[ 1843.308145] NVRM: The NVIDIA GPU 0000:B3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).
[ 1900.000000] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
[ 1900.000001] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00
[ 1900.000002] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Data {0x000001c0, 0x00bd5c8a, 0x00000500}
[ 1901.000000] nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 22013, Non-fatal, Link 12 Minion Link DLREQ interrupt
[ 1902.000000] nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
"""


def kernel_log(log: str) -> Vitals:
    """The facts of a kernel's log, as the doctor's script selects its lines."""
    script = (ROOT / "kit" / "doctor" / "vitals.sh").read_text()
    select = script[script.index('if [ -n "$log" ]') : script.index("section fabric-manager")]
    run = ["sh", "-c", f'log="$1"\n{select}', "sh", log]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return read_vitals(f"@@ kernel-log\n{done.stdout}")


def test_lost_gpus_of_the_kernels_log_are_told() -> None:
    """Only Xids were: two GPUs with one number were one finding, and the others were none."""
    storm = "[  150.000000] NVRM: Xid (PCI:0000:61:00): 31, pid=9, MMU Fault\n" * 1000
    vitals = kernel_log(KERNEL.replace("[  200", f"{storm}[  200", 1))
    found = judged(REPORT.facts, xids=vitals.xids, losses=vitals.losses, sxids=vitals.sxids)
    wrong = [(each.code.id, each.evidence.split(", ")[0]) for each in found if each.run]
    assert [each for each in wrong if each[0] != "KIT-GPU-022"] == [
        ("KIT-GPU-011", "Xid (PCI:0000:41:00): 79"),
        ("KIT-GPU-011", "Xid (PCI:0000:61:00): 79"),
        ("KIT-GPU-019", "GPU 0000:01:00.0: RmInitAdapter failed! (0x25:0x40:1470)"),
        ("KIT-GPU-019", "GPU at PCI:0000:81:00: the GPU has fallen off the bus"),
        (
            "KIT-GPU-019",
            "The NVIDIA GPU 0000:B3:00.0 (PCI ID: 10de:26b5) installed in this system has fallen "
            "off the bus and is not responding to commands",
        ),
    ]
    sxids = [each for each in found if each.code.id == "KIT-GPU-022"]
    assert [
        (re.findall(r"(\d+), (?:Non-f|F)atal", each.evidence)[0], each.verdict) for each in sxids
    ] == [
        ("12028", "wrong"),  # GPUs hang after it.
        ("22013", "note"),
        ("20034", "wrong"),
    ]


def test_a_loss_without_an_address_is_told_if_no_other_is() -> None:
    line = "NVRM: The NVIDIA probe routine failed for 1 device(s)"
    assert kernel_log(f"[    9.500000] {line}.").losses == (
        Loss("", line.removeprefix("NVRM: "), 9.5),
    )
    assert kernel_log("[    9.500000] usb 1-1: new device").xids == ()
    assert kernel_log("").xids is None
    assert of({"xids": None, "losses": ()}) == {"KIT-GPU-011": Verdict.NOTE}
    old = Xid(45, "Xid (PCI:0000:41:00): 45, Ch 1", 1.0)
    assert of({"xids": (old,)}) == {"KIT-GPU-011": Verdict.NOTE}


# -------- The first use of each GPU


def test_a_gpu_that_cannot_be_used_is_told() -> None:
    well = Computed("pc2", "digits", TITAN, "")
    assert tried(computed=(well,)) == {}
    faulty = replace(well, fault="cuInit: system not yet initialized (CUDA error 802)")
    assert tried(computed=(well, faulty)) == {"KIT-GPU-023": Verdict.WRONG}


def test_each_gpu_is_tried_in_a_process_of_its_own() -> None:
    """Here without CUDA, or with CUDA and without such GPUs."""
    done = subprocess.run(
        [sys.executable, COMPUTE, "GPU-0", "GPU-1"], capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    assert [re.findall(r'"device": "([^"]*)"', line) for line in lines] == [["GPU-0"], ["GPU-1"]]
    assert not any('"error": ""' in line for line in lines)


def test_the_drivers_error_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(_number: object, place: Any) -> int:
        place._obj.value = b"system not yet initialized"
        return 0

    driver = SimpleNamespace(cuInit=lambda _flags: 802, cuGetErrorString=named)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("ctypes.CDLL", lambda _name: driver)
    assert compute.compute("GPU-0") == "cuInit: system not yet initialized (CUDA error 802)"


def test_gpus_that_give_no_answer_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said = f'WARNING: no swap limit\n@doctor {{"device": "{TITAN}", "error": ""}}\nKilled\n'
    scripts: list[str] = []

    def run(_host: Host, script: str) -> str:
        scripts.append(script)
        return said

    monkeypatch.setattr("kit.hosts.ssh.run", run)
    image = WANTED.hosts[0].uses[0].image
    seen = [VisibleGpus("pc2", "digits", (TITAN, GV100), (TITAN, GV100))]
    assert try_gpus(REPORT, WANTED, "t", {image}, seen) == [
        Computed("pc2", "digits", TITAN, ""),
        Computed("pc2", "digits", GV100, "Killed"),
    ]
    assert f"NVIDIA_VISIBLE_DEVICES={TITAN},{GV100}" in scripts[0]
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in scripts[0]
    busy = [replace(seen[0], seen=(), busy="train.1")]
    assert try_gpus(REPORT, WANTED, "t", {image}, busy) == []
    assert try_gpus(REPORT, WANTED, "t", set(), seen) == []
    assert len(scripts) == 1


@pytest.mark.parametrize(
    ("device", "busy"),
    [(TITAN.upper(), True), ("0", True), ("all", True), ("1", False), (GV100, False)],
)
def test_a_gpu_that_a_container_has_is_not_tried(device: str, *, busy: bool) -> None:
    holder = Container("i", "web", "cuda", "nvidia", "", (device,), None)
    report = replace(REPORT, vitals=replace(VITALS, containers=(holder,)))
    use = replace(WANTED.hosts[0].uses[0], gpus=(TITAN,))
    assert bool(_busy(report, use)) is busy


def test_the_probes_sections_are_those_that_are_read() -> None:
    text = (ROOT / "kit" / "discover" / "probe.sh").read_text()
    listed = set(re.findall(r"^section (\S+)", text, re.MULTILINE))
    assert listed == set(re.findall(r"^@@ (\S+)", printed(), re.MULTILINE))
