"""The probe's output, the facts parsed from it, and the changes of the inventory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.config.load import Sources, read_inventory
from kit.discover import match
from kit.discover.cable import shared_fast_network
from kit.discover.engines import REMEDIES, StandIn
from kit.discover.facts import DiscoveredHost, HostFacts
from kit.discover.match import HostToAsk, logins_of
from kit.discover.notes import notes_of
from kit.discover.parse import read_facts
from kit.discover.update import new_inventory, updated
from kit.errors import InputError
from kit.model import Inventory

TITAN = "GPU-db1c6a2f-a4bd-5f84-a541-aa32df2b2a6f"
GV100 = "GPU-7227cc4b-1b42-548e-abbc-ab63e41581d0"
A100 = "GPU-1111aaaa-2222-3333-4444-555566667777"
INSTANCES = ("MIG-aaaa1111-2222-5333-8444-555566667777", "MIG-bbbb1111-2222-5333-8444-555566667777")

GPUS = f"""\
GPU 0: NVIDIA TITAN RTX (UUID: {TITAN})
GPU 1: Quadro GV100 (UUID: {GV100})"""
QUERY = f"""\
{TITAN}, 0, NVIDIA TITAN RTX, 24576, 550.54.15
{GV100}, 1, Quadro GV100, 32768, 550.54.15"""
MIG = f"""\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: {A100})
  MIG 3g.40gb     Device  0: (UUID: {INSTANCES[0]})
  MIG 1g.10gb     Device  1: (UUID: {INSTANCES[1]})"""
DOCKER = (
    '{"Client":{},"Server":{"Version":"26.0.0","Components":'
    '[{"Name":"containerd","Version":"1.6.28"}]}}'
)
INFO = '{"Runtimes":{"nvidia":{},"runc":{}},"DefaultRuntime":"runc","Swarm":{}}'
DENIED = """\
{"Client":{"Version":"26.0.0"},"Server":null}
permission denied while trying to connect to the Docker daemon socket"""


def printed(**changes: str) -> str:
    """The probe's output on a desktop with two GPUs; `changes` are sections."""
    sections = {
        "host": "pc2\nLinux 5.15.0-105\nx86_64\n192.168.8.20 50000 192.168.8.114 22",
        "os": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"',
        "cpu": "16\nmodel name\t: AMD Ryzen 9 5950X",
        "memory": "MemTotal:       65780000 kB\nSwapTotal:       2097148 kB",
        "disks": "Filesystem Type 1024-blocks Used Available Capacity Mounted on\n"
        "/dev/nvme0n1p2 ext4 1000000 400000 600000 40% /\n"
        "/dev/sda1 ext4 4000000 0 4000000 0% /mnt/big disk",
        "cgroup": "cgroup2fs",
        "gpus": GPUS,
        "gpu-query": QUERY,
        "gpu-compute": f"{TITAN}, 7.5\n{GV100}, 7.0",
        "gpu-bus": "",
        "gpu-mig": "",
        "pci": "",
        "gpu-ecc": f"{TITAN}, [N/A]\n{GV100}, Enabled",
        "tegra": "",
        "cuda": "CUDA Version: 12.4",
        "topology": "",
        "docker": DOCKER,
        "docker-info": INFO,
        "docker-program": "/usr/bin/docker\nunix:///var/run/docker.sock",
        "toolkit": "NVIDIA Container Toolkit CLI version 1.15.0\n"
        "/usr/bin/nvidia-container-runtime-hook",
        "groups": "user2 docker",
        "interfaces": "eno1 device up 1500 1000\n"
        "lo virtual unknown 65536 \nwlp4s0 device down 1500 ",
        "addresses": "2: eno1    inet 192.168.8.114/24 brd 192.168.8.255 scope global eno1\\  x\n"
        "2: eno1    inet6 fe80::1/64 scope link \\  x",
        "routes": "Iface\tDestination\tGateway\tFlags\n"
        "eno1\t00000000\t0108A8C0\t0003\neno1\t0008A8C0\t00000000\t0001",
        "rdma": "",
        "clock": "1700000000.5",
        "end": "",
    }
    assert changes.keys() <= {name.replace("-", "_") for name in sections}
    sections |= {name.replace("_", "-"): text for name, text in changes.items()}
    return "".join(f"\n@@ {name}\n{text}\n" for name, text in sections.items())


def facts(**changes: str) -> HostFacts:
    return read_facts(printed(**changes))


def host(name: str, number: int, **changes: str) -> HostFacts:
    """A host of a name, with the last byte of its address."""
    own = f"192.168.8.{number}"
    line = f"2: eno1    inet {own}/24 scope global eno1"
    return facts(**{"host": f"{name}\nLinux\nx86_64\n1 2 {own} 22", "addresses": line, **changes})


def named(
    answered: Sequence[tuple[HostToAsk, HostFacts]], fast: str | None
) -> list[DiscoveredHost]:
    """The hosts with their names and addresses, none of which is refused."""
    found, refused = match.named(answered, fast)
    assert refused == []
    return found


def inventory_of(text: str) -> Inventory:
    return read_inventory(text, Path("inventory.yaml"), Sources())


def update(text: str, *found: HostFacts) -> tuple[str, tuple[str, ...]]:
    """The text after these hosts have answered, as the command makes it."""
    by_name = {each.name: each for each in inventory_of(text).hosts}
    answered = [
        (HostToAsk(each.hostname, f"user@{each.hostname}", by_name.get(each.hostname)), each)
        for each in found
    ]
    made = updated(text, "inventory.yaml", named(answered, shared_fast_network(list(found))))
    inventory_of(made.text)
    return made.text, made.notes


def test_a_desktop_is_read() -> None:
    found = facts()
    assert (found.hostname, found.os, found.architecture) == ("pc2", "Ubuntu 22.04.4 LTS", "x86_64")
    assert (found.cores, found.cpu) == (16, "AMD Ryzen 9 5950X")
    assert (found.memory, found.swap) == (65780000 * 1024, 2097148 * 1024)
    assert [(disk.mount, disk.free) for disk in found.disks] == [
        ("/", 600000 * 1024),
        ("/mnt/big disk", 4000000 * 1024),
    ]
    titan, quadro = found.gpus
    assert (titan.uuid, titan.index, titan.model, titan.compute) == (TITAN, 0, "TITAN RTX", "7.5")
    assert (titan.memory, titan.ecc, quadro.ecc) == (24 * 2**30, None, True)
    assert (found.driver, found.cuda, found.gpu_fault) == ("550.54.15", "12.4", "")
    assert (found.docker.version, found.docker.containerd, found.docker.fault) == (
        "26.0.0",
        "1.6.28",
        "",
    )
    assert (found.docker.runtimes, found.toolkit, found.hook) == (
        ("nvidia", "runc"),
        "1.15.0",
        True,
    )
    assert (found.cgroup, found.reached, found.route) == (2, "192.168.8.114", "eno1")
    assert [each.name for each in found.interfaces] == ["eno1", "wlp4s0"]
    card = found.interface_of("192.168.8.114")
    assert card
    assert (card.speed, card.mtu, card.addresses) == (10**9, 1500, ("192.168.8.114/24",))


def test_of_a_card_with_instances_these_are_taken() -> None:
    query = f"{A100}, 0, NVIDIA A100-SXM4-80GB, 81920, 550.54.15"
    found = facts(gpus=MIG, gpu_query=query, gpu_compute=f"{A100}, 8.0").gpus
    assert [gpu.uuid for gpu in found] == list(INSTANCES)
    assert [gpu.model for gpu in found] == [
        "A100-SXM4-80GB MIG 3g.40gb",
        "A100-SXM4-80GB MIG 1g.10gb",
    ]
    assert {(gpu.card, gpu.compute) for gpu in found} == {(A100, "8.0")}
    assert [gpu.memory for gpu in found] == [40 * 2**30, 10 * 2**30]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"docker": DENIED, "docker_info": ""}, "docker cannot be used: permission denied"),
        ({"docker": "sh: 1: docker: not found", "docker_info": ""}, "docker is not installed"),
        ({"docker": "", "docker_info": ""}, "docker is not installed"),
        (
            {"toolkit": "", "docker_info": "{}"},
            "it has GPUs, but no NVIDIA container toolkit: kit host prepare --run",
        ),
        (
            {"gpus": "Failed to initialize NVML: Driver/library version mismatch"},
            "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch",
        ),
        ({"rdma": "mlx5_0|ib0|InfiniBand|1: DOWN|10 Gb/sec"}, "mlx5_0 (InfiniBand) has no link"),
    ],
)
def test_what_is_wrong_with_a_host_is_told(changes: dict[str, str], note: str) -> None:
    found = named([(HostToAsk("pc2", "user2@pc2"), facts(**changes))], None)
    assert note in "\n".join(notes_of(found))


PODMAN = """\
Emulate Docker CLI using podman. Create /etc/containers/nodocker to quiet msg.
{"Client":{"APIVersion":"4.9.3","Version":"4.9.3","GoVersion":"go1.22.2","GitCommit":"",\
"BuiltTime":"Thu Jan  1 00:00:00 1970","Built":0,"OsArch":"linux/amd64","Os":"linux"}}"""
PODMAN_INFO = '{"host":{"arch":"amd64","security":{"rootless":true}},"version":{"Version":"4.9.3"}}'
PODMAN_SOCKET = (
    '{"Client":{"Version":"26.1.3","ApiVersion":"1.41"},"Server":{"Platform":{"Name":"linux/amd64/'
    'fedora-40"},"Components":[{"Name":"Podman Engine","Version":"5.2.2"}],"Version":"5.2.2"}}'
)
NERDCTL = (
    '{"Client":{"Version":"v1.7.6","GitCommit":"845e989f","Components":[]},'
    '"Server":{"Components":[{"Name":"containerd","Version":"v1.7.16"}]}}'
)
DESKTOP = (
    '{"Client":{"Version":"27.2.0","ApiVersion":"1.47","Context":"desktop-linux"},"Server":'
    '{"Platform":{"Name":"Docker Desktop 4.34.2 (167172)"},"Version":"27.2.0"}}'
)
DESKTOP_IS_OFF = """\
{"Client":{"Version":"27.2.0","ApiVersion":"1.47","Context":"desktop-linux"},"Server":null}
Cannot connect to the Docker daemon at unix:///home/me/.docker/desktop/docker.sock. Is the docker \
daemon running?"""
IS_OFF = """\
Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?
{"Client":{"Version":"27.3.1","ApiVersion":"1.47","Context":"default"},"Server":null}"""
ROOTLESS_INFO = (
    '{"DockerRootDir":"/home/me/.local/share/docker","SecurityOptions":'
    '["name=seccomp,profile=builtin","name=rootless","name=cgroupns"]}'
)
SNAP_INFO = '{"DockerRootDir":"/var/snap/docker/common/var-lib-docker"}'
MISSING = {"docker": "sh: 1: docker: not found", "docker_info": ""}
HOME = "/usr/bin/docker\nunix:///home/me/.docker/desktop/docker.sock"
STAND_INS: dict[str, tuple[StandIn | None, dict[str, str]]] = {
    "podman-docker": (StandIn.PODMAN, {"docker": PODMAN, "docker_info": PODMAN_INFO}),
    "podman-docker that keeps quiet": (
        StandIn.PODMAN,
        {"docker": PODMAN.partition("\n")[2], "docker_info": PODMAN_INFO},
    ),
    "docker's client at Podman's socket": (StandIn.PODMAN, {"docker": PODMAN_SOCKET}),
    "nerdctl by the name of docker": (StandIn.NERDCTL, {"docker": NERDCTL, "docker_info": "{}"}),
    "Docker Desktop": (StandIn.DESKTOP, {"docker": DESKTOP, "docker_program": HOME}),
    "Docker Desktop of WSL": (
        StandIn.DESKTOP,
        {"docker_info": '{"OperatingSystem":"Docker Desktop"}'},
    ),
    "Docker Desktop that is off": (
        StandIn.DESKTOP,
        {"docker": DESKTOP_IS_OFF, "docker_info": "", "docker_program": HOME},
    ),
    "rootless Docker": (
        StandIn.ROOTLESS,
        {
            "docker_info": ROOTLESS_INFO,
            "docker_program": "/usr/bin/docker\nunix:///run/user/1000/docker.sock",
        },
    ),
    "rootless Docker of which SSH does not know": (
        StandIn.ROOTLESS,
        {
            "docker": IS_OFF,
            "docker_info": "",
            "docker_program": "/usr/bin/docker\nunix:///var/run/docker.sock\n"
            "/run/user/1000/docker.sock",
        },
    ),
    "rootless Docker in ~/bin": (
        StandIn.ROOTLESS,
        {**MISSING, "docker_program": "\n/run/user/1000/docker.sock"},
    ),
    "Docker from snap": (
        StandIn.SNAP,
        {
            "docker_info": SNAP_INFO,
            "docker_program": "/snap/bin/docker\nunix:///var/run/docker.sock\n/snap/bin/docker",
        },
    ),
    "Docker from snap that is not in the path": (
        StandIn.SNAP,
        {**MISSING, "docker_program": "\n/snap/bin/docker"},
    ),
    "a context of another machine": (
        StandIn.ELSEWHERE,
        {"docker_program": "/usr/bin/docker\nssh://me@gpu2"},
    ),
    "an engine that is off": (None, {"docker": IS_OFF, "docker_info": ""}),
    "a user without rights": (
        None,
        {
            "docker": DENIED,
            "docker_info": "",
            "docker_program": "/usr/bin/docker\nunix:///var/run/docker.sock\n"
            "/run/user/1000/docker.sock",
        },
    ),
}


@pytest.mark.parametrize(("stand", "changes"), STAND_INS.values(), ids=STAND_INS)
def test_what_answers_in_place_of_the_hosts_own_engine_is_named(
    stand: StandIn | None, changes: dict[str, str]
) -> None:
    found = facts(**changes)
    assert found.docker.stand_in == stand
    (note, *_) = notes_of(named([(HostToAsk("pc2", "user2@pc2"), found)], None))
    told = REMEDIES[stand].what if stand else ""
    assert note.startswith(f"pc2: docker cannot be used: {told}")
    assert "{" not in note


def test_a_sound_host_has_no_notes() -> None:
    assert list(notes_of(named([(HostToAsk("pc2", "user2@pc2"), facts())], None))) == []
    assert facts(gpus="No devices were found").gpu_fault == ""
    assert facts(gpus="").gpu_fault == ""


def test_an_answer_that_is_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="not complete"):
        read_facts(printed().partition("@@ clock")[0])
    assert read_facts("Welcome to pc2!\n" + printed()) == facts()


def test_an_inventory_of_two_desktops_is_written() -> None:
    one = host("pc1", 151, gpus=f"GPU 0: NVIDIA TITAN RTX (UUID: {A100})", gpu_query="")
    two = host("pc2.lab", 114)
    answered = [
        (HostToAsk("user1@pc1", "user1@pc1"), one),
        (HostToAsk("user2@pc2", "user2@pc2"), two),
    ]
    made = new_inventory("pool", "swarm", named(answered, None))
    assert (
        made.text
        == f"""\
cluster: pool
engine: swarm

hosts:
  pc1:
    address: 192.168.8.151
    ssh: user1@pc1
    roles: [manager]
    gpus:
      - {{uuid: {A100}, model: TITAN RTX}}
  pc2:
    address: 192.168.8.114
    ssh: user2@pc2
    gpus:
      - {{uuid: {TITAN}, model: TITAN RTX, memory: 24GiB}}
      - {{uuid: {GV100}, model: Quadro GV100, memory: 32GiB}}

network: {{speed: 1Gbit}}
"""
    )
    assert [gpu.id for gpu in inventory_of(made.text).hosts[1].gpus] == [TITAN, GV100]


WRITTEN = """\
# The pool under the desks.
cluster: pool

hosts:
  pc2:     # beside the window
    address: 192.168.8.114
    gpus: {gpus}
    roles: [manager]
  # others come later
network: {{speed: 1Gbit}}  # the old switch
"""
UUIDS = f"""
      - {{uuid: {TITAN}, model: TITAN RTX, memory: 24GiB}}
      - {{uuid: {GV100}, model: Quadro GV100, memory: 32GiB}}"""


SPARK: dict[str, str] = {
    "host": "spark1\nLinux 6.11.0-1016-nvidia\naarch64\n192.168.8.20 50000 192.168.8.31 22",
    "addresses": "2: eno1    inet 192.168.8.31/24 scope global eno1",
    "cpu": "20\nModel name:                           Cortex-X925",
    "memory": "MemTotal:       125513872 kB",
    "gpus": f"GPU 0: NVIDIA GB10 (UUID: {TITAN})",
    "gpu_query": f"{TITAN}, 0, NVIDIA GB10, [N/A], 580.95.05",
}


def test_the_processor_of_a_host_is_written_unless_it_is_the_usual_one() -> None:
    text, notes = update(
        "cluster: lab\nhosts:\n  a: {address: 10.0.0.1, roles: [manager]}\n", facts(**SPARK)
    )
    assert "  spark1:\n    address: 192.168.8.31\n" in text
    assert "    architecture: arm64\n" in text
    assert inventory_of(text).hosts[1].architecture == "arm64"
    assert facts(**SPARK).cpu == "Cortex-X925"
    assert update(text, facts(**SPARK)) == (text, notes)
    bare = facts(gpus="No devices were found", gpu_query="")
    assert "architecture" not in update(text, bare)[0].partition("pc2")[2]


def test_a_processor_that_the_inventory_does_not_have_is_added_or_told() -> None:
    host = "cluster: lab\nhosts:\n  spark1:\n    address: 192.168.8.31\n    speed: 1Gbit\n"
    bare = {**SPARK, "gpus": "No devices were found", "gpu_query": ""}
    text, _ = update(host, facts(**bare))
    assert "    architecture: arm64\n" in text
    # The model of a GPU says it already.
    gpu = f"    gpus: [{{uuid: {TITAN}, model: GB10, memory: 119GiB}}]\n"
    assert update(host + gpu, facts(**SPARK))[0] == host + gpu
    _, notes = update(host + "    architecture: amd64\n" + gpu, facts(**SPARK))
    assert notes == (
        "spark1: its processor is arm64, the inventory says amd64: correct `architecture`",
    )


@pytest.mark.parametrize(
    ("chip", "model"), [("tegra234", "Orin"), ("tegra194", "Xavier"), ("tegra264", "Thor")]
)
def test_a_jetson_without_nvidia_smi_has_its_gpu(chip: str, model: str) -> None:
    tegra = f"NVIDIA Jetson AGX Orin Developer Kit\nnvidia,p3701-0000\nnvidia,{chip}"
    memory = "MemTotal:       31445912 kB"
    found = facts(**{**SPARK, "gpus": "", "gpu_query": "", "tegra": tegra, "memory": memory})
    (gpu,) = found.gpus
    assert (gpu.model, gpu.index, gpu.shared, gpu.memory) == (model, 0, True, 29 * 2**30)
    text, _ = update("cluster: lab\nhosts:\n  a: {address: 10.0.0.1, roles: [manager]}\n", found)
    assert f"      - {{index: 0, model: {model}, memory: 29GiB}}\n" in text
    assert update(text, found) == (text, ())


def test_uuids_replace_a_number_and_all_else_stays() -> None:
    before = WRITTEN.format(gpus="2  # two")
    text, notes = update(before, facts())
    assert text == before.replace(" 2  # two", f"{UUIDS}  # two")
    assert notes == ()
    assert update(text, facts()) == (text, ())


def test_what_an_index_was_for_its_gpu_is_for() -> None:
    before = WRITTEN.format(gpus="[{index: 1, use: inference}, {index: 0}]")
    text, _ = update(before, facts())
    uses = [(gpu.id, gpu.use) for gpu in inventory_of(text).hosts[0].gpus]
    assert uses == [(TITAN, "training"), (GV100, "inference")]
    assert update(text, facts()) == (text, ())


def test_a_block_of_indexes_and_carriage_returns() -> None:
    block = "\n      # one serves\n      - index: 0\n        use: none\n      - index: 1 # x"
    before = WRITTEN.format(gpus=block).replace("\n", "\r\n")
    text, _ = update(before, facts())
    assert text.count("\n") == text.count("\r\n")
    assert "      # one serves\r\n      - {uuid: GPU-db1c" in text
    assert "use: none}\r\n      - {uuid: GPU-7227" in text


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_gpus_that_nobody_wrote_are_added(newline: str) -> None:
    before = WRITTEN.replace("    gpus: {gpus}\n", "").format().replace("\n", newline)
    text, _ = update(before, facts())
    added = f"    gpus:{UUIDS}\n".replace("\n", newline)
    assert text == before.replace(".114" + newline, f".114{newline}{added}")
    braces = "cluster: pool\nhosts:\n  pc2: {address: 192.168.8.114, roles: [manager]}\n"
    assert f".114, gpus: [{{uuid: {TITAN}, model" in update(braces, facts())[0]


def test_a_new_card_is_added_and_one_that_is_gone_is_told() -> None:
    listed = f"\n      - uuid: {A100}\n        use: inference  # stays\n      - {{uuid: {TITAN}}}"
    before = WRITTEN.format(gpus=listed)
    text, notes = update(before, facts())
    added = f"\n      - {{uuid: {GV100}, model: Quadro GV100, memory: 32GiB}}"
    assert text == before.replace(f"{{uuid: {TITAN}}}", f"{{uuid: {TITAN}}}{added}")
    assert notes == (f"pc2: {A100} no longer exists",)


@pytest.mark.parametrize("listed", [f"[{{uuid: {TITAN}}}]", f'[{{"uuid": "{TITAN}"}}]'])
def test_lists_in_brackets_stay_in_brackets(listed: str) -> None:
    text, _ = update(WRITTEN.format(gpus=listed), facts())
    assert f"}}, {{uuid: {GV100}, model: Quadro GV100, memory: 32GiB}}]" in text


def test_the_speed_is_added_but_not_changed() -> None:
    fast = facts(interfaces="eno1 device up 1500 10000")
    before = WRITTEN.format(gpus="0")
    text, _ = update(before.replace("    roles", "    speed: 2Gbit\n    roles"), fast)
    assert "speed: 10Gbit" not in text
    text, notes = update(before, fast)
    assert "    address: 192.168.8.114\n    speed: 10Gbit\n" in text
    assert notes == ("pc2: the inventory says 0 GPUs, nvidia-smi lists 2",)


def test_a_new_host_comes_behind_the_others() -> None:
    before = WRITTEN.format(gpus="2")
    text, _ = update(before, host("pc3", 115, gpus="", gpu_query=""))
    new = "  pc3:\n    address: 192.168.8.115\n    ssh: user@pc3\n    gpus: 0\n"
    assert text == before.replace("  # others", f"{new}  # others")


def test_an_anchor_is_left_alone() -> None:
    before = WRITTEN.format(gpus="&two 2").replace(
        "  # others", "  pc3: {address: 192.168.8.115, gpus: *two}\n  # others"
    )
    text, notes = update(before, host("pc3", 115))
    assert text == before
    assert notes == ("pc3: its section uses an anchor or a merge: not changed",)


ODD = [
    ("  pc2:\n    address: >-\n      192.168.8.114\n", "pc2"),
    ("  ? pc2\n  : address: 192.168.8.114\n    speed: 1Gbit\n    gpus: 0\n", "pc9"),
]


@pytest.mark.parametrize(("section", "odd"), ODD, ids=["a folded address", "a complex key"])
def test_a_place_that_is_not_understood_stays(section: str, odd: str) -> None:
    other = "  pc1:\n    address: 192.168.8.151\n    roles: [manager]\n"
    text = f"cluster: lab\nhosts:\n{section}{other}network:\n  speed: 10Gbit\n"
    bare = {"gpus": "", "gpu_query": ""}
    changed, notes = update(text, host("pc2", 114, **bare), host("pc9", 19, **bare))
    before, after = inventory_of(text).hosts, inventory_of(changed).hosts
    assert after[:2] == before
    said = "kit does not understand the form of inventory.yaml at this place; write it by hand"
    assert f"{odd}: not written: {said}" in notes


@pytest.mark.parametrize("gpus", ["[{index: 0, use: spare}]", f"[{{uuid: {TITAN}, use: spare}}]"])
def test_a_new_card_of_a_spare_is_a_spare(gpus: str) -> None:
    changed, _ = update(WRITTEN.format(gpus=gpus), facts())
    (pc2,) = inventory_of(changed).hosts
    assert [(each.id, each.use.value) for each in pc2.gpus] == [(TITAN, "spare"), (GV100, "spare")]


def test_hosts_of_a_range_are_compared_alone() -> None:
    before = WRITTEN.format(gpus="2").replace("pc2:", "pc[1-2]:").replace(".114", ".[113-114]")
    text, notes = update(before, facts(), host("pc1", 113, gpus=f"GPU 0: T (UUID: {A100})"))
    assert text == before
    assert notes == ("pc[1-2] says 2 GPUs, pc1 has 1: describe it by itself",)


FAST = {
    "interfaces": "eno1 device up 1500 1000\nenp1s0f0np0 device up 9000 200000",
}


def spark(name: str, number: int) -> HostFacts:
    lines = (
        f"2: eno1    inet 192.168.8.{number}/24 scope global eno1",
        f"3: enp1s0f0np0    inet 10.0.0.{number}/24 scope global enp1s0f0np0",
    )
    return host(name, number, addresses="\n".join(lines), **FAST)


def test_a_fast_link_of_one_host_is_told() -> None:
    found = named([(HostToAsk("a", "a"), spark("a", 1)), (HostToAsk("b", "b"), host("b", 2))], None)
    notes = [note for note in notes_of(found) if "enp1s0f0np0" in note]
    assert notes == [
        "a: enp1s0f0np0 has 200Gbit, and its address 192.168.8.1 is not on it; "
        "write 10.0.0.1 as its address if the other hosts reach it there"
    ]
    there = replace(found[0], address="10.0.0.1")
    assert not [note for note in notes_of([there]) if "enp1s0f0np0" in note]


def test_a_fast_second_network_is_told_and_used() -> None:
    pair = [(HostToAsk(name, name), spark(name, n)) for name, n in (("a", 1), ("b", 2))]
    fast = shared_fast_network([each for _, each in pair])
    found = named(pair, fast)
    assert [each.address for each in found] == ["10.0.0.1", "10.0.0.2"]
    said = "all hosts share 10.0.0.0/24 by enp1s0f0np0 with 200Gbit"
    assert list(notes_of(found)) == [f"{said}: training uses it, SSH keeps the other one"]
    assert "speed: 200Gbit" in new_inventory("pool", "swarm", found).text
    slow = [
        DiscoveredHost("a", "a", "192.168.8.1", pair[0][1]),
        DiscoveredHost("b", "b", "192.168.8.2", pair[1][1]),
    ]
    advice = "write these as their addresses to use it (a: 10.0.0.1, b: 10.0.0.2)"
    assert list(notes_of(slow)) == [f"{said}: {advice}"]
    assert shared_fast_network([pair[0][1], host("c", 3)]) is None


PORTS = ("enp1s0f0np0", "enp1s0f1np1")


def cabled(name: str, number: int, mtu: int = 9000, devices: str = "01") -> HostFacts:
    """One of two DGX Sparks: each port of its cable has a network of its own."""
    links = "".join(f"\n{port} device up {mtu} 200000" for port in PORTS)
    lines = [f"2: eno1    inet 192.168.8.{number}/24 scope global eno1"]
    lines += [
        f"{index + 3}: {port}    inet 192.168.10{index}.{number}/24 scope global {port}"
        for index, port in enumerate(PORTS)
    ]
    rdma = "\n".join(
        f"rocep1s0f{each}|{PORTS[int(each)]}|Ethernet|4: ACTIVE|200 Gb/sec (4X HDR)"
        for each in devices
    )
    return host(
        name,
        number,
        interfaces=f"eno1 device up 1500 10000{links}",
        addresses="\n".join(lines),
        rdma=rdma,
        gpus="No devices were found",
        gpu_query="",
    )


def pair_of(one: HostFacts, other: HostFacts) -> list[DiscoveredHost]:
    answered = [(HostToAsk(each.hostname, each.hostname), each) for each in (one, other)]
    return named(answered, shared_fast_network([one, other]))


def test_both_ports_of_a_cable_are_written_for_nccl() -> None:
    found = pair_of(cabled("spark1", 1), cabled("spark2", 2))
    assert [each.address for each in found] == ["192.168.100.1", "192.168.100.2"]
    text = new_inventory("sparks", "swarm", found).text
    assert text.endswith(
        "network:\n  driver: host\n  interface: [enp1s0f0np0, enp1s0f1np1]\n  speed: 200Gbit\n"
        '  mtu: 9000\n  infiniband: true\n  nccl: {NCCL_IB_HCA: "=rocep1s0f0,rocep1s0f1"}\n'
    )
    network = inventory_of(text).network
    assert (network.interface, network.mtu) == ("enp1s0f0np0,enp1s0f1np1", 9000)
    said = "all hosts share 2 fast links, enp1s0f0np0 and enp1s0f1np1: NCCL uses all of them"
    assert said in list(notes_of(found))


def test_what_a_cable_lacks_is_told() -> None:
    found = pair_of(cabled("spark1", 1, mtu=1500), cabled("spark2", 2, devices="0"))
    text = new_inventory("sparks", "swarm", found).text
    assert "infiniband" not in text
    assert "mtu" not in text
    notes = "\n".join(notes_of(found))
    assert "the MTU of enp1s0f0np0 and enp1s0f1np1 is 1500: 9000 on all hosts" in notes
    assert "not every host has an active RDMA device for each of enp1s0f0np0" in notes


def test_an_inventory_that_exists_is_told_what_to_write() -> None:
    found = pair_of(cabled("spark1", 1), cabled("spark2", 2))
    text = new_inventory("sparks", "swarm", found).text.partition("network:")[0]
    known = inventory_of(text).hosts
    notes = "\n".join(
        notes_of([replace(each, known=one) for each, one in zip(found, known, strict=True)])
    )
    assert (
        "with `network: {driver: host, interface: [enp1s0f0np0, enp1s0f1np1], speed: 200Gbit, "
        'mtu: 9000, infiniband: true, nccl: {NCCL_IB_HCA: "=rocep1s0f0,rocep1s0f1"}}`' in notes
    )


def test_two_ports_in_one_network_are_told() -> None:
    facts_of = cabled("spark1", 1)
    same = tuple(
        replace(each, addresses=("192.168.100.7/24",)) if each.name == PORTS[1] else each
        for each in facts_of.interfaces
    )
    one = DiscoveredHost("spark1", "a", "192.168.100.1", replace(facts_of, interfaces=same))
    assert (
        "spark1: enp1s0f0np0 and enp1s0f1np1 are both in 192.168.100.0/24: packets leave by one of "
        "them; give each port a network of its own on all hosts" in list(notes_of([one]))
    )


def test_versions_that_differ_and_clocks_are_told() -> None:
    old = host("b", 2, docker=DOCKER.replace("26.0.0", "24.0.7"))
    found = named([(HostToAsk("a", "a"), host("a", 1)), (HostToAsk("b", "b"), old)], None)
    assert list(notes_of(found)) == [
        "Docker differs: 26.0.0 on a; 24.0.7 on b; use one version on all hosts"
    ]


def test_who_is_asked() -> None:
    inventory = inventory_of(WRITTEN.format(gpus="2"))
    assert [each.name for each in logins_of([], inventory)] == ["pc2"]
    for login in ("pc2", "192.168.8.114", "somebody@pc2", "192.168.8.114:22"):
        (asked,) = logins_of([login, login], inventory)
        assert (asked.name, asked.ssh) == ("pc2", "192.168.8.114")
    (new,) = logins_of(["user1@pc1:2222"], inventory)
    assert (new.name, new.ssh, new.known) == ("user1@pc1:2222", "user1@pc1:2222", None)
    with pytest.raises(InputError, match="there is no inventory"):
        logins_of([], None)
    with pytest.raises(InputError):
        logins_of(["-oProxyCommand=evil"], None)


SECOND = [
    (host("pc1", 2), "a and b have the same host name, pc1"),
    (host("other", 1), "b is the same machine as a: 192.168.8.1 is the address of pc1"),
    (host("pc2", 3), "192.168.8.114 and b have the same host name, pc2"),
    (host("other", 114), "b is the same machine as 192.168.8.114: 192.168.8.114 is the address"),
]


@pytest.mark.parametrize(("second", "told"), SECOND)
def test_a_second_host_of_a_name_or_an_address_is_refused_alone(
    second: HostFacts, told: str
) -> None:
    """As of cloned disks, and of two aliases of one machine."""
    three = [("a", host("pc1", 1)), ("b", second), ("c", host("pc4", 4))]
    written = inventory_of(WRITTEN.format(gpus="2")).hosts
    pairs = [(HostToAsk(login, login), each) for login, each in three]
    found, (refused,) = match.named(pairs, None, written)
    assert [each.login for each in found] == ["a", "c"]
    assert told in refused.message


def test_a_forwarded_port_is_no_address() -> None:
    found = facts(host="pc2\nLinux\nx86_64\n127.0.0.1 5 127.0.0.1 22")
    assert named([(HostToAsk("x", "localhost:2222"), found)], None)[0].address == "192.168.8.114"


LINKS = """\
1: lo    inet 127.0.0.1/8 scope host lo\\  x
2: eno1    inet6 fd00::114/64 scope global dynamic mngtmpaddr \\  x
2: eno1    inet6 fe80::3c4d/64 scope link \\  x
3: enp1s0    inet 10.0.0.5/24 brd 10.0.0.255 scope global enp1s0\\  x
4: docker0    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0\\  x
2: eno1    inet 192.168.8.114/24 brd 192.168.8.255 scope global eno1\\  x"""
CONNECTIONS = [
    # A ProxyCommand that starts `sshd -i`, and systemd's socket of vsock.
    ("UNKNOWN 65535 UNKNOWN 65535", "192.168.8.114", "SSH does not report its address there"),
    ("", "192.168.8.114", "SSH does not report its address there"),
    ("192.168.8.20 50000", "192.168.8.114", "SSH does not report its address there"),
    ("fd00::20 50000 fd00::114 22", "192.168.8.114", "SSH uses IPv6"),
    ("fe80::1a2b%eno1 50000 fe80::3c4d%eno1 22", "192.168.8.114", "SSH uses IPv6"),
    ("fe80::1a2b%enp1s0 50000 fe80::9%enp1s0 22", "10.0.0.5", "SSH uses IPv6"),
    ("::ffff:10.0.0.9 50000 ::ffff:10.0.0.5 22", "10.0.0.5", ""),
    ("10.0.0.9 50000 10.0.0.5 22", "10.0.0.5", ""),
]


@pytest.mark.parametrize("default", ["eno1", ""])
@pytest.mark.parametrize(("connection", "address", "told"), CONNECTIONS)
def test_the_address_by_what_ssh_says_of_its_connection(
    connection: str, address: str, told: str, default: str
) -> None:
    found = facts(
        host=f"pc2\nLinux\nx86_64\n{connection}",
        addresses=LINKS,
        routes=f"Iface\tDestination\tGateway\tFlags\n{default}\t00000000\t0108A8C0\t0003"
        if default
        else "Iface\tDestination\tGateway\tFlags",
        interfaces="docker0 virtual up 1500 \neno1 device up 1500 1000\n"
        "enp1s0 device up 1500 1000\nlo virtual unknown 65536 ",
    )
    (made,) = named([(HostToAsk("box", "me@box"), found)], None)
    assert made.address == address
    notes = [note for note in notes_of([made]) if "SSH" in note]
    assert [told in note for note in notes] == ([True] if told else [])


def test_an_address_on_the_loopback_interface_is_one_of_the_host() -> None:
    """As of hosts that announce their address by BGP on each of their links."""
    found = facts(
        host="pc2\nLinux\nx86_64\n10.255.0.20 50000 10.255.0.2 22",
        addresses="1: lo    inet 127.0.0.1/8 scope host lo\\  x\n"
        "1: lo    inet 10.255.0.2/32 scope global lo\\  x",
    )
    interface = found.interface_of("10.255.0.2")
    assert interface
    assert interface.name == "lo"


def test_a_host_without_an_address_is_refused_alone() -> None:
    silent = facts(host="box\nLinux\nx86_64\nUNKNOWN 65535 UNKNOWN 65535", addresses="")
    pairs = [(HostToAsk("a_b", "a_b"), silent), (HostToAsk("pc2", "pc2"), facts())]
    (found,), (refused,) = match.named(pairs, None)
    assert found.name == "pc2"
    assert refused.message == "a_b: no network card has an address that other hosts reach"


@given(
    gpus=st.sampled_from(
        ["0", "[]", "1", "2", "[{index: 0}, {index: 1, use: none}]", f"[{{uuid: {A100}}}]"]
    ),
    speed=st.sampled_from(["", "    speed: 2Gbit\n", "    interface: auto\n"]),
    ending=st.sampled_from(["", "# end", "\n\n"]),
    number=st.integers(0, 2),
)
def test_a_second_time_changes_nothing(gpus: str, speed: str, ending: str, number: int) -> None:
    before = WRITTEN.format(gpus=gpus).replace("    roles", f"{speed}    roles") + ending
    found = facts(gpus="\n".join(GPUS.splitlines()[:number]))
    text, _ = update(before, found)
    assert update(text, found)[0] == text
    kept = [line for line in before.splitlines() if "gpus:" not in line]
    rest = iter(text.splitlines())
    assert all(line in rest for line in kept)
