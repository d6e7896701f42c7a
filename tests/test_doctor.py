"""The checks of `kit doctor`: facts in, findings out; its lines, its JSON, its command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kit.commands.expectations import expectations
from kit.discover.engines import StandIn
from kit.discover.facts import InterfaceFacts
from kit.discover.parse import read_facts
from kit.doctor import codes, host_codes
from kit.doctor.checks import containers, links, network, services
from kit.doctor.checks import docker as docker_checks
from kit.doctor.checks.all import check_all
from kit.doctor.checks.containers import runs_on
from kit.doctor.codes import CODES
from kit.doctor.facts import (
    Container,
    DataNeed,
    GpuHealth,
    HostImage,
    Node,
    Process,
    Report,
    Room,
    Swarm,
    Use,
    Vitals,
    Wanted,
    WantedHost,
    Xid,
)
from kit.doctor.findings import Finding, Verdict, note, ok, wrong
from kit.doctor.fix import fixes_for
from kit.doctor.parse import read_vitals
from kit.doctor.probe import QUICK, sections
from kit.doctor.results import ContainerResults, Link, Listing, Torch, TrialContainer, VisibleGpus
from kit.doctor.show import document, lines, summary
from kit.doctor.wanted import only
from kit.model import Gpu, Host
from kit.model import Use as GpuUse
from kit.paths import Paths
from kit.workload.ports import OpenPort
from kit.workload.settings import Port
from tests.conftest import Docker
from tests.sandbox import INVENTORY, JOB, ROOT, Project
from tests.test_discover import GV100, TITAN, printed

IMAGE = "registry.lab:5000/trainer:0.2.0"
NOW = 1_700_000_000.0
MANAGER = Node("id-pc2", "pc2", "ready", "", "192.168.8.114", "active", "manager", "reachable", ())
SWARM = Swarm(
    "active", "", "id-pc2", "192.168.8.114", True, "c", (), (MANAGER,), NOW - 99, NOW + 99
)
VITALS = Vitals(
    clock=NOW,
    overcommit="0",
    uptime=5000.0,
    cgroup_driver="cgroupfs",
    health=(GpuHealth(TITAN, True, 280.0, 280.0, 0, 1), GpuHealth(GV100, True, 250.0, 250.0, 0, 0)),
    xids=(),
    rooms=(Room("/var/lib/docker", 2**40, 2**39),),
    images={IMAGE: HostImage("sha256:aaaa", (), "amd64")},
    swarm=SWARM,
)
DOCKER = (
    '{"Client":{},"Server":{"Version":"26.1.5","Components":'
    '[{"Name":"containerd","Version":"1.7.24"}]}}'
)
INFO = (
    '{"Runtimes":{"nvidia":{},"runc":{}},"DefaultRuntime":"nvidia","GenericResources":['
    f'{{"NamedResourceSpec":{{"Kind":"kit_gpu","Value":"{TITAN}"}}}},'
    f'{{"NamedResourceSpec":{{"Kind":"kit_gpu","Value":"{GV100}"}}}}]}}'
)
FACTS = read_facts(printed(docker=DOCKER, docker_info=INFO))


def gpu(uuid: str) -> Gpu:
    return Gpu(uuid, known=True, model=None, memory=None, use=GpuUse.TRAINING)


HOST = Host("pc2", "192.168.8.114", "user2@pc2", (), (gpu(TITAN), gpu(GV100)), None, 10**9, ())
USE = Use("digits", "train-digits", IMAGE, (TITAN, GV100), pinned=True, shared_memory=2**30)
WANTED = Wanted(
    "pool", "compose/pool", True, 1500, "pool-training", (WantedHost(HOST, (USE,), manager=True),)
)
REPORT = Report("pc2", FACTS, VITALS, 0.3, 0.0)


def bad(findings: Iterator[Finding]) -> dict[str, Verdict]:
    return {each.code.id: each.verdict for each in findings if each.verdict is not Verdict.OK}


def of(
    vitals: dict[str, object] | None = None,
    want: dict[str, object] | None = None,
    **changes: object,
) -> dict[str, Verdict]:
    """What is not well with a host that has these changes of its facts."""
    report = replace(REPORT, vitals=replace(VITALS, **(vitals or {})))  # type: ignore[arg-type]
    own = {name: value for name, value in changes.items() if name in {"login", "clock_error"}}
    facts = {name: value for name, value in changes.items() if name not in own}
    report = replace(report, facts=replace(FACTS, **facts), **own)  # type: ignore[arg-type]
    wanted = replace(WANTED, hosts=(replace(WANTED.hosts[0], **(want or {})),))  # type: ignore[arg-type]
    return bad(check_all([report], wanted))


def test_a_healthy_host_has_no_finding_and_every_check_is_told() -> None:
    findings = list(check_all([REPORT], WANTED))
    assert bad(iter(findings)) == {}
    passive = {code.id for code in CODES.values() if not code.active}
    alone = {host_codes.HOSTNAME.id, host_codes.VERSION.id, codes.FOLDERS.id, codes.DATA.id}
    alone |= {codes.USED_PORT.id, codes.ROOM.id, codes.HEALTH.id}  # See the tests of services.
    assert passive - {each.code.id for each in findings} == alone - {codes.DATA.id}


HEALTH = VITALS.health[0]
VITAL_FAULTS: list[tuple[str, dict[str, object]]] = [
    ("KIT-HOST-003", {"rooms": (Room("/var/lib/docker", 2**40, 2**20),)}),
    ("KIT-HOST-004", {"lookups": {"registry.lab": 5.0}}),
    ("KIT-HOST-006", {"overcommit": "2"}),
    ("KIT-HOST-007", {"cgroup_driver": "systemd"}),
    (
        "KIT-GPU-004",
        {"toolkit": {"accept-nvidia-visible-devices-envvar-when-unprivileged": "false"}},
    ),
    ("KIT-GPU-005", {"toolkit": {"swarm-resource": "DOCKER_RESOURCE_KIT_GPU"}}),
    ("KIT-GPU-008", {"containers": (Container("i", "x", "cuda", "", "", (), "all"),)}),
    ("KIT-GPU-011", {"xids": (Xid(79, "Xid (PCI:0000:01:00): 79, lost", 100.0),)}),
    ("KIT-GPU-012", {"health": (replace(HEALTH, ecc_errors=2),)}),
    ("KIT-GPU-013", {"health": (replace(HEALTH, pending=True),)}),
    ("KIT-GPU-013", {"health": (replace(HEALTH, failed=True),)}),
    ("KIT-GPU-014", {"health": (replace(HEALTH, throttled=0x48),)}),
    ("KIT-GPU-017", {"processes": (Process(TITAN, 12, "", 1900, "blender"),)}),
    ("KIT-SWARM-001", {"swarm": replace(SWARM, state="pending", nodes=())}),
    ("KIT-SWARM-001", {"swarm": replace(SWARM, nodes=(replace(MANAGER, availability="drain"),))}),
    ("KIT-SWARM-001", {"swarm": replace(SWARM, nodes=(replace(MANAGER, state="down"),))}),
    ("KIT-SWARM-001", {"swarm": replace(SWARM, node="another")}),
    ("KIT-SWARM-003", {"swarm": replace(SWARM, nodes=(), fault="no leader")}),
    ("KIT-SWARM-004", {"swarm": replace(SWARM, valid_until=NOW - 1)}),
    ("KIT-SWARM-004", {"swarm": replace(SWARM, valid_from=NOW - 999, valid_until=NOW + 9)}),
    ("KIT-SWARM-005", {"swarm": replace(SWARM, address="10.0.0.2")}),
]


@pytest.mark.parametrize(("code", "vitals"), VITAL_FAULTS)
def test_faults_of_a_host_are_named(code: str, vitals: dict[str, object]) -> None:
    assert of(vitals)[code] is Verdict.WRONG


NOTES: list[tuple[str, dict[str, object]]] = [
    ("KIT-HOST-005", {"swap_used": 2**32}),
    ("KIT-GPU-004", {"toolkit": {"mode": "cdi"}}),
    ("KIT-GPU-011", {"xids": None}),
    ("KIT-GPU-011", {"xids": (Xid(31, "Xid (PCI:0000:01:00): 31, MMU fault", None),)}),
    ("KIT-GPU-017", {"processes": (Process(TITAN, 12, "", 300, "gnome-shell"),)}),
    ("KIT-GPU-015", {"health": (replace(HEALTH, power_limit=150.0),)}),
    ("KIT-GPU-016", {"health": (replace(HEALTH, persistence=False),)}),
    ("KIT-SWARM-001", {"swarm": Swarm("inactive")}),
]


@pytest.mark.parametrize(("code", "vitals"), NOTES)
def test_what_does_not_prevent_the_work_is_a_note(code: str, vitals: dict[str, object]) -> None:
    assert of(vitals)[code] is Verdict.NOTE


def test_facts_of_the_probe_are_judged() -> None:
    denied = replace(FACTS.docker, version="", fault="permission denied while trying to connect")
    assert of(docker=denied)["KIT-DOCKER-001"] is Verdict.WRONG
    assert of(docker=replace(FACTS.docker, version="24.0.7"))["KIT-DOCKER-003"] is Verdict.WRONG
    assert of(docker=replace(FACTS.docker, version="29.0.1")) == {"KIT-DOCKER-003": Verdict.NOTE}
    assert of(toolkit="1.18.1") == {"KIT-DOCKER-003": Verdict.NOTE}
    assert of(docker=replace(FACTS.docker, generic=())) == {"KIT-GPU-006": Verdict.WRONG}
    assert of(docker=replace(FACTS.docker, default_runtime="runc"))["KIT-GPU-003"] is Verdict.WRONG
    assert of(hook=False, toolkit="")["KIT-GPU-003"] is Verdict.WRONG
    assert of(gpus=(), gpu_fault="Failed to initialize NVML")["KIT-GPU-001"] is Verdict.WRONG
    assert of(gpus=(), driver="")["KIT-GPU-001"] is Verdict.WRONG
    assert of(gpus=FACTS.gpus[:1])["KIT-GPU-002"] is Verdict.WRONG
    assert of(login=9.0) == {"KIT-SSH-002": Verdict.NOTE}
    assert of(clock_error=-40.0) == {"KIT-HOST-002": Verdict.WRONG}
    assert of(interfaces=())["KIT-NET-008"] is Verdict.WRONG
    slow = tuple(replace(each, speed=10**8) for each in FACTS.interfaces)
    assert of(interfaces=slow) == {"KIT-NET-008": Verdict.NOTE}
    narrow = tuple(replace(each, mtu=1400) for each in FACTS.interfaces)
    assert of(interfaces=narrow) == {"KIT-NET-005": Verdict.WRONG}


def test_what_the_plan_expects_is_compared() -> None:
    labels = (("kit.host", "pc2"), ("kit.job.digits", "none"))
    assert of(want={"labels": labels}) == {"KIT-SWARM-002": Verdict.WRONG}
    large = replace(USE, shared_memory=2**50)
    assert of(want={"uses": (large,)}) == {"KIT-HOST-008": Verdict.WRONG}
    folder = replace(USE, folders=("/srv/data",))
    assert of({"missing": ("/srv/data",)}, {"uses": (folder,)}) == {"KIT-DATA-002": Verdict.WRONG}
    heavy = replace(USE, checkpoint_bytes=2**39 + 1)
    assert of(want={"uses": (heavy,)}) == {"KIT-HOST-003": Verdict.WRONG}


def test_own_containers_may_use_their_gpus() -> None:
    own = Container("i", "train.1", IMAGE, "nvidia", "train-digits", (), TITAN)
    assert of({"containers": (own,), "processes": (Process(TITAN, 9, "i", 1, "python3"),)}) == {}
    monitor = Container("i", "m", "nvcr.io/nvidia/k8s/dcgm-exporter:4", "nvidia", "", (), "all")
    assert of({"containers": (monitor,)}) == {}
    asks = Container("i", "x", "cuda", "runc", "", (), "all")
    assert asks.gpus("nvidia") == ()
    assert replace(asks, requested=("all",)).gpus("nvidia") == ("all",)
    assert replace(asks, runtime="", visible="void").gpus("nvidia") == ()


def two(**changes: object) -> tuple[list[Report], Wanted]:
    """Two hosts; `changes` are those of the second one's facts."""
    other = replace(HOST, name="pc1", address="", gpus=())
    facts = replace(FACTS, **{"hostname": "pc1", "gpus": (), **changes})  # type: ignore[arg-type]
    swarm = replace(SWARM, node="id-pc1", manager=False, nodes=())
    vitals = replace(VITALS, swarm=swarm, health=())
    worker = replace(MANAGER, id="id-pc1", hostname="pc1", role="worker", reachability="")
    manager = replace(REPORT, vitals=replace(VITALS, swarm=replace(SWARM, nodes=(MANAGER, worker))))
    host = WantedHost(other, (replace(USE, gpus=()),))
    wanted = replace(WANTED, hosts=(*WANTED.hosts, host))
    return [manager, Report("pc1", facts, vitals, 0.2, 0.0)], wanted


def test_hosts_are_compared_with_each_other() -> None:
    assert bad(check_all(*two())) == {}
    assert bad(check_all(*two(hostname="PC2"))) == {"KIT-HOST-001": Verdict.WRONG}
    other = replace(FACTS.docker, version="26.0.2")
    assert bad(check_all(*two(docker=other))) == {"KIT-DOCKER-002": Verdict.WRONG}
    patch = replace(FACTS.docker, version="26.1.4")
    assert bad(check_all(*two(docker=patch))) == {"KIT-DOCKER-002": Verdict.NOTE}
    reports, wanted = two()
    images = {IMAGE: HostImage("sha256:bbbb", (), "amd64")}
    reports[1] = replace(reports[1], vitals=replace(reports[1].vitals, images=images))
    assert bad(check_all(reports, wanted)) == {"KIT-DOCKER-004": Verdict.WRONG}


def test_the_image_of_another_architecture_is_compared_with_none() -> None:
    reports, wanted = two(architecture="aarch64")
    images = {IMAGE: HostImage("sha256:bbbb", (), "arm64")}
    reports[1] = replace(reports[1], vitals=replace(reports[1].vitals, images=images))
    wanted = replace(
        wanted,
        hosts=(
            wanted.hosts[0],
            replace(wanted.hosts[1], host=replace(wanted.hosts[1].host, architecture="arm64")),
        ),
    )
    assert bad(check_all(reports, wanted)) == {}


def test_the_processor_and_the_image_for_it() -> None:
    """An image for amd64 on a host that the inventory takes for one of amd64, and is not."""
    assert of(architecture="aarch64") == {
        "KIT-HOST-009": Verdict.WRONG,
        "KIT-DOCKER-008": Verdict.WRONG,
    }
    spark: dict[str, object] = {"host": replace(HOST, architecture="arm64")}
    arm: dict[str, object] = {"images": {IMAGE: HostImage("sha256:aaaa", (), "arm64")}}
    assert of(arm, spark, architecture="aarch64") == {}
    # Images of `docker import` of old engines have no architecture.
    none: dict[str, object] = {"images": {IMAGE: HostImage("sha256:aaaa")}}
    assert of(none, spark, architecture="aarch64") == {}
    assert host_codes.PROCESSOR.quick
    assert "host" in QUICK


def test_each_planned_port_of_a_cable_is_judged() -> None:
    """The address is on the first; NCCL would leave out another one without a word."""
    first = InterfaceFacts("eno1", True, True, 9000, 10**9, ("192.168.8.114/24",))
    second = InterfaceFacts("eno2", True, True, 9000, 10**9, ("10.0.1.1/24",))
    want = replace(WANTED.hosts[0], interface="eno1,eno2")
    wanted = replace(WANTED, overlay="", mtu=9000)

    def said(**changes: object) -> list[str]:
        facts = replace(FACTS, interfaces=(first, replace(second, **changes)))  # type: ignore[arg-type]
        found = network.check(replace(REPORT, facts=facts), want, wanted)
        return [each.evidence for each in found if each.verdict is not Verdict.OK]

    assert said() == []
    assert said(name="eno3") == ["there is no interface eno2 (eno1, eno3)"]
    assert said(up=False) == ["eno2 is down"]
    assert said(addresses=()) == ["eno2 has no address"]
    assert said(mtu=1500) == ["eno2 has an MTU of 1500, the inventory says 9000"]


def test_gpus_that_nvidias_playbook_has_offered_are_recognised() -> None:
    docker = replace(FACTS.docker, generic=(f"NVIDIA_GPU={TITAN[:12]}", f"kit_gpu={GV100}"))
    found = check_all([replace(REPORT, facts=replace(FACTS, docker=docker))], WANTED)
    (lacking,) = [each for each in found if each.code is host_codes.OFFERED]
    assert f"as after NVIDIA's Swarm playbook, Docker offers NVIDIA_GPU={TITAN[:12]}" in (
        lacking.evidence
    )
    assert lacking.run.startswith("kit host prepare --run pc2")


def test_without_a_manager_nothing_is_said_of_the_quorum() -> None:
    reports, wanted = two()
    codes_of = {each.code.id for each in check_all(reports[1:], only(wanted, ["pc1"]))}
    assert {"KIT-SWARM-001"} == {code for code in codes_of if code.startswith("KIT-SWARM-00")} - {
        "KIT-SWARM-004"
    }


def test_lost_managers_are_counted() -> None:
    gone = replace(MANAGER, id="x", hostname="m2", reachability="unreachable")
    third = replace(MANAGER, id="y", hostname="m3")
    found = [
        each
        for each in check_all(
            [
                replace(
                    REPORT,
                    vitals=replace(VITALS, swarm=replace(SWARM, nodes=(MANAGER, gone, third))),
                )
            ],
            WANTED,
        )
        if each.code is codes.QUORUM
    ]
    assert [each.verdict for each in found] == [Verdict.WRONG]
    assert "1 of 3 managers cannot be reached (m2); the Swarm survives the loss of 0 more" in str(
        found
    )


# -------- Containers and traffic

TRIED = ContainerResults((), (), None, {}, (), (), ())


def tried(**changes: object) -> dict[str, Verdict]:
    made = replace(TRIED, **changes)  # type: ignore[arg-type]
    return bad(iter([*containers.check(made, [REPORT], WANTED), *links.check(made, WANTED)]))


def test_what_containers_got_is_judged() -> None:
    well = TrialContainer("pc2", IMAGE, "", 2**30, 65536, 0)
    assert tried(containers=(well,)) == {}
    assert tried(containers=(replace(well, files=1024),)) == {"KIT-DOCKER-006": Verdict.WRONG}
    assert tried(containers=(replace(well, shm=2**26),)) == {"KIT-DOCKER-006": Verdict.WRONG}
    assert tried(containers=(replace(well, gpus=2),)) == {"KIT-GPU-008": Verdict.WRONG}
    assert tried(containers=(replace(well, fault="no runc"),)) == {"KIT-DOCKER-005": Verdict.WRONG}
    assert tried(containers=(TrialContainer("pc2", ""),)) == {"KIT-DOCKER-005": Verdict.NOTE}


def test_a_container_must_see_the_planned_gpus_and_no_others() -> None:
    sight = VisibleGpus("pc2", "digits", (TITAN,), (TITAN.upper(),))
    assert tried(visible_gpus=(sight,)) == {}
    assert tried(visible_gpus=(replace(sight, seen=(TITAN, GV100)),)) == {
        "KIT-GPU-007": Verdict.WRONG
    }
    assert tried(visible_gpus=(replace(sight, seen=(GV100,)),)) == {"KIT-GPU-007": Verdict.WRONG}
    assert tried(visible_gpus=(replace(sight, seen=(), fault="x"),)) == {
        "KIT-GPU-007": Verdict.WRONG
    }
    assert tried(visible_gpus=(replace(sight, busy="train.1"),)) == {"KIT-GPU-007": Verdict.NOTE}
    assert tried(visible_gpus=(replace(sight, given=("0",), seen=(GV100,)),)) == {}


def test_torch_must_fit_the_driver_and_the_gpus() -> None:
    torch = Torch(IMAGE, "2.7.1", "12.6", ("sm_70", "sm_75"))
    assert tried(torches=(torch,)) == {}
    assert tried(torches=(replace(torch, cuda="13.0"),)) == {"KIT-GPU-009": Verdict.WRONG}
    assert tried(torches=(replace(torch, archs=("sm_80",)),)) == {"KIT-GPU-010": Verdict.WRONG}
    assert tried(torches=(replace(torch, cuda=""),)) == {"KIT-GPU-009": Verdict.NOTE}


@pytest.mark.parametrize(
    ("compute", "archs", "runs"),
    [
        ("7.5", ["sm_70"], True),
        ("7.0", ["sm_75"], False),
        ("8.9", ["sm_80", "sm_90"], True),
        ("12.0", ["sm_90", "compute_90"], True),
        ("12.0", ["sm_90"], False),
        ("10.0", ["sm_100a"], True),
        ("7.0", ["compute_80"], False),
    ],
)
def test_architectures(compute: str, archs: list[str], *, runs: bool) -> None:
    assert runs_on(compute, archs) is runs


def test_data_sets_are_compared() -> None:
    here = Listing("pc2", "digits", "data set", "", 4, 100, "aa")
    there = replace(here, host="pc1")
    assert tried(listings=(here, there)) == {}
    assert tried(listings=(here, replace(there, digest="bb"))) == {"KIT-DATA-001": Verdict.WRONG}
    assert tried(listings=(replace(here, missing="mnist is not complete"),)) == {
        "KIT-DATA-001": Verdict.WRONG
    }


def way(start: str, end: str, **changes: object) -> Link:
    both = frozenset({7946, 4789})
    sound = Link(start, end, {7946: "", 2377: ""}, both, both, (40, 1500), "", "")
    return replace(sound, **changes)  # type: ignore[arg-type]


HOSTS = tuple(
    replace(WANTED.hosts[0], host=replace(HOST, name=name, address="")) for name in ("a", "b", "c")
)
PAIRS = [(start, end) for start in "abc" for end in "abc" if start != end]


def ways(**changes: object) -> list[Finding]:
    """The findings if the links to host b have changes."""
    made = [way(start, end, **(changes if end == "b" else {})) for start, end in PAIRS]
    wanted = replace(WANTED, hosts=HOSTS, overlay="")
    found = links.check(replace(TRIED, links=tuple(made)), wanted)
    return [each for each in found if each.verdict is not Verdict.OK]


def test_closed_ports_are_named_with_the_host_that_closes_them() -> None:
    assert ways() == []
    for change, code, said in (
        ({"tcp": {7946: "timed out", 2377: ""}}, codes.GOSSIP_TCP, "7946/tcp: timed out"),
        ({"tcp": {7946: "", 2377: "refused"}}, codes.MANAGER_PORT, "2377/tcp: refused"),
        ({"udp": frozenset({4789})}, codes.GOSSIP_UDP, "7946/udp: no packet arrives"),
        ({"udp": frozenset({7946})}, codes.VXLAN, "4789/udp: no packet arrives"),
        ({"passed": (40, 1400)}, codes.MTU, "packets of 1500 bytes do not pass, 1400 bytes pass"),
    ):
        (found,) = ways(**change)
        assert (found.code, found.host) == (code, "b")
        assert found.evidence == f"a, c → b: {said}"


SECOND = "2: eno1    inet 10.0.0.5/24 scope global eno1\\  x\n"


def test_what_answers_in_place_of_the_hosts_own_engine_is_told_with_what_to_run() -> None:
    """Its other checks of Docker would mislead."""
    docker = replace(FACTS.docker, stand_in=StandIn.ROOTLESS)
    report = replace(REPORT, facts=replace(FACTS, docker=docker))
    (found,) = docker_checks.check(report, WANTED.hosts[0], WANTED)
    assert (found.code.id, found.verdict) == ("KIT-DOCKER-007", Verdict.WRONG)
    assert "docker context use default" in found.run
    assert found.run.endswith("then kit host prepare --run --install-docker pc2")


CLUSTERS = "2: eno1    inet 192.168.8.114/24 scope global eno1\\  x"
LOOPBACK = "1: lo    inet 192.168.8.114/32 scope global lo\\  x"


@pytest.mark.parametrize(
    ("addresses", "overlay", "first"),
    [
        (SECOND + CLUSTERS, "", "10.0.0.5"),
        (LOOPBACK, "", "127.0.0.1"),
        (SECOND + CLUSTERS, "net", ""),
    ],
)
def test_an_address_that_nccl_and_gloo_would_not_use_is_told(
    addresses: str, overlay: str, first: str
) -> None:
    report = replace(REPORT, facts=read_facts(printed(addresses=addresses)))
    wanted = replace(WANTED, overlay=overlay)
    found = [
        one for one in network.check(report, WANTED.hosts[0], wanted) if "NCCL" in one.evidence
    ]
    assert [f"NCCL and gloo use {first}" in one.evidence for one in found] == (
        [True] if first else []
    )


def test_udp_over_ipv6_is_not_known() -> None:
    found = ways(tried=frozenset(), udp=frozenset(), passed=())
    assert [(each.code, each.host, each.verdict) for each in found] == [
        (codes.GOSSIP_UDP, "b", Verdict.NOTE),
        (codes.VXLAN, "b", Verdict.NOTE),
    ]


def test_a_host_that_reaches_nobody_is_named_itself() -> None:
    made = [way(start, end, udp=frozenset() if start == "c" else frozenset({7946, 4789}))
            for start, end in PAIRS]  # fmt: skip
    wanted = replace(WANTED, hosts=HOSTS, overlay="")
    found = [each for each in links.check(replace(TRIED, links=tuple(made)), wanted)
             if each.code is codes.VXLAN]  # fmt: skip
    assert [(each.host, each.evidence[:8]) for each in found] == [("c", "c → a, b")]


def test_the_overlay_is_judged_beside_the_ports() -> None:
    errors = dict.fromkeys(PAIRS, "")
    wanted = replace(WANTED, hosts=HOSTS)

    def judged(change: dict[tuple[str, str], str]) -> dict[str, Verdict]:
        return bad(links.check(replace(TRIED, overlay=errors | change), wanted))

    assert judged({}) == {}
    assert judged({("a", "b"): "no data"}) == {"KIT-NET-006": Verdict.WRONG}
    assert judged({("c", "c"): "not started"}) == {"KIT-NET-006": Verdict.WRONG}
    reached = replace(TRIED, overlay=errors, reached={("a", "digits"): "timed out"})
    assert bad(links.check(reached, wanted)) == {"KIT-NET-007": Verdict.WRONG}


# -------- The probe's output


def test_the_doctors_sections_are_read() -> None:
    text = printed(memory="MemTotal: 1000 kB\nSwapTotal: 900 kB\nSwapFree: 100 kB")
    more = {
        "began": "1700000000.25",
        "kernel": "2\n3600.5 99.0",
        "gpu-health": f"{TITAN}, Enabled, 150.00, 280.00, 3\n{GV100}, [N/A], [N/A], [N/A], [N/A]",
        "gpu-throttle": f'Field "x" is not a valid field to query.\n{TITAN}, 0x0000000000000040',
        "gpu-rows": f"{TITAN}, Yes, No",
        "gpu-processes": f"{TITAN},1234,{'ab' * 32}, 800, /usr/bin/python3, with comma",
        "kernel-log": "readable\n[  100.500000] NVRM: Xid (PCI:0000:01:00): 79, lost",
        "toolkit-config": 'mode = "cdi"  # set by hand\nswarm-resource = "A,B"',
        "char-devices": "/dev/char/195:0\n/dev/char/195:255",
        "room": "1000 10 /var/lib/docker\n2000 20 /srv/my data",
        "paths": "there /srv/a\nmissing /srv/b",
        "names": "registry.lab 12",
        "images": f'{IMAGE}|sha256:aa|["r/t@sha256:dd"]|arm64',
        "containers": "id1|/web|nginx|nvidia|<no value>|shop|"
        '[{"Driver":"nvidia","Count":0,"DeviceIDs":["0"]}]|NVIDIA_VISIBLE_DEVICES=all',
        "volumes": "kit-pool_data",
        "networks": "pool-training\ningress",
        "nodes": 'n1|pc2|ready||10.0.0.1|active|manager|reachable|{"kit.host":"pc2"}',
    }
    head, end = text.split("@@ clock")
    found = read_vitals(
        head + "".join(f"\n@@ {name}\n{body}\n" for name, body in more.items()) + "\n@@ clock" + end
    )
    assert (found.began, found.clock, found.overcommit, found.uptime) == (
        1700000000.25,
        1700000000.5,
        "2",
        3600.5,
    )
    assert found.swap_used == 800 * 1024
    assert found.health[0] == GpuHealth(TITAN, True, 150.0, 280.0, 3, 0x40, pending=True)
    assert found.health[1] == GpuHealth(GV100)
    assert found.processes == (
        Process(TITAN, 1234, "ab" * 32, 800, "/usr/bin/python3, with comma"),
    )
    assert found.xids == (Xid(79, "Xid (PCI:0000:01:00): 79, lost", 100.5),)
    assert found.toolkit == {"mode": "cdi", "swarm-resource": "A,B"}
    assert found.char_devices == 2
    assert found.rooms[1] == Room("/srv/my data", 2048000, 20480)
    assert found.missing == ("/srv/b",)
    assert found.lookups == {"registry.lab": 0.012}
    assert found.images == {IMAGE: HostImage("sha256:aa", ("sha256:dd",), "arm64")}
    assert found.containers == (Container("id1", "web", "nginx", "nvidia", "shop", ("0",), "all"),)
    assert found.networks == ("pool-training", "ingress")
    assert found.swarm.nodes[0].labels == (("kit.host", "pc2"),)
    assert read_vitals(text).xids is None


def test_the_validity_of_a_certificate_is_read() -> None:
    pem = (ROOT / "tests" / "certificate.pem").read_text()
    found = read_vitals(f"{printed()}\n@@ certificate\n{pem}").swarm
    assert (found.valid_from, found.valid_until) == (1767225600.0, 1775001600.0)


def test_the_quick_part_is_a_part_of_the_probe() -> None:
    text = (ROOT / "kit" / "discover" / "probe.sh").read_text()
    quick = sections(text, QUICK)
    assert set(re.findall(r"^section (\S+)", quick, re.MULTILINE)) == QUICK - {"paths"}
    assert quick.startswith(text[: text.index("section host")])


# -------- Lines, JSON, documentation


def test_good_news_are_grouped_and_bad_ones_are_not() -> None:
    names = [f"h{n}" for n in range(20)]
    found = [
        *(ok(host_codes.SMI, name) for name in names),
        wrong(host_codes.DNS, "h3", "it stalls", "look"),
    ]
    assert [line for _, line in lines(found, every=False)] == [
        "wrong  KIT-HOST-004    h3: it stalls",
        "                       run: look",
        "                       see: docs/troubleshooting.md#kit-host-004",
        "ok     KIT-GPU-001     nvidia-smi works: 20 hosts",
    ]
    assert len(list(lines(found, every=True))) == 23
    assert summary(found, 20, 1.25).startswith("1 finding to correct: 2 checks of 20 hosts")
    made = document(found, "pool")
    assert made["wrong"] == 1
    assert made["findings"][0]["doc"] == "docs/troubleshooting.md#kit-host-004"


def test_codes_are_stable_in_their_form() -> None:
    assert all(re.fullmatch(r"KIT-[A-Z]+-\d{3}", code) for code in CODES)
    assert [code.id for code in CODES.values()] == list(CODES)


def test_fixes_are_those_that_are_safe() -> None:
    found = [wrong(host_codes.IMAGE, "pc2", "x", "y"), wrong(host_codes.XID, "pc2", "x", "y")]
    (fix,) = fixes_for(found, WANTED)
    assert (fix.host, fix.script) == ("pc2", f"docker pull -q {IMAGE}")
    absent = note(host_codes.START, "pc2", "it has no image")
    assert [each.script for each in fixes_for([absent], WANTED)] == [fix.script]
    assert fixes_for([wrong(host_codes.START, "pc2", "no runc", "look")], WANTED) == []
    assert fixes_for([ok(host_codes.IMAGE, "pc2")], WANTED) == []


# -------- The command line


def test_wrong_use_is_refused(project: Project) -> None:
    project.write()
    for arguments, said in (
        (("doctor", "--yes"), "--yes is an answer to --fix"),
        (("doctor", "nobody"), "there is no host nobody"),
        (("doctor", "--nothing"), "No such option"),
    ):
        result = project.kit(*arguments)
        assert result.status == 2
        assert said in result.err
    inventory = project.folder / "inventory.yaml"
    inventory.write_text(inventory.read_text().replace("engine: swarm", "engine: local"))
    assert "says `engine: local`" in project.kit("doctor").err


def test_hosts_that_do_not_answer_are_findings(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text("#!/bin/sh\necho 'no route to host' >&2\nexit 255\n")
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    project.write()
    result = project.kit("doctor", "--json")
    assert result.status == 1
    found = json.loads(result.out)
    assert list(found) == ["cluster", "wrong", "findings"]
    assert [(each["code"], each["host"]) for each in found["findings"]] == [
        ("KIT-SSH-001", "pc1"),
        ("KIT-SSH-001", "pc2"),
    ]
    assert "no route to host" in found["findings"][0]["evidence"]
    shown = project.kit("doctor")
    assert "run: ssh 192.168.8.151 true" in shown.out
    assert "2 findings to correct" in shown.out


def port(number: int, title: str, workload: str = "") -> OpenPort:
    return OpenPort("pc2", Port(number, ("data", "port"), public=True), title, workload)


def container(name: str, group: str, **more: Any) -> Container:
    return Container("i", name, "image", "runc", group, (), "void", **more)


SERVER = port(8090, "the data services")
EXPORTER = port(9100, "the node exporter")
METRICS = port(9500, "job digits", "digits")
OWN = container("pool-platform_data-server.1.x", "pool-platform", ports=(8090,), health="healthy")
USED: list[tuple[str, set[int], list[Container], set[int]]] = [
    ("nothing listens", set(), [], set()),
    ("a program listens", {8090}, [], {8090}),
    ("kit's own service listens", {8090}, [OWN], set()),
    ("a container of somebody listens", {8090}, [container("x", "", ports=(8090,))], {8090}),
    ("another port than kit's container publishes", {8090, 9100}, [OWN], {9100}),
    (
        "kit's containers on the host's network",
        {9100, 9500},
        [
            container("pool-monitoring_node-exporter.a", "pool-monitoring", host_network=True),
            container("train-digits_train.1", "train-digits", host_network=True),
        ],
        set(),
    ),
    (
        "a job of kit, but not the exporter",
        {9100, 9500},
        [container("pool_train-digits-train-1", "pool_train-digits", host_network=True)],
        {9100},
    ),
]


@pytest.mark.parametrize(
    ("listening", "running", "used"), [c[1:] for c in USED], ids=[c[0] for c in USED]
)
def test_ports_that_others_use(
    listening: set[int], running: list[Container], used: set[int]
) -> None:
    vitals = replace(VITALS, listening=frozenset(listening), containers=tuple(running))
    want = replace(WANTED.hosts[0], ports=(SERVER, EXPORTER, METRICS))
    found = services.check(replace(REPORT, vitals=vitals), want, WANTED)
    bad = [each.evidence for each in found if each.code is codes.USED_PORT and each.run]
    assert {number for number in (8090, 9100, 9500) if str(number) in " ".join(bad)} == used


class Engine(BaseHTTPRequestHandler):
    """An engine with one container, whose image has no health check."""

    def do_GET(self) -> None:
        state = {"Status": "running", "Running": True}
        ports = {"9000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "9000"}]}
        answer = {
            "Id": "abc",
            "Name": "/web",
            "State": state,
            "NetworkSettings": {"Networks": {"lab": {}}, "Ports": ports},
        }
        body = json.dumps({} if self.path.endswith("_ping") else answer).encode()
        self.send_response(200)
        self.send_header("Api-Version", "1.44")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_docker_tells_the_ports_of_a_container_without_a_health_check(docker: Docker) -> None:
    """The template failed there, and kit's own server was `another program` on its port."""
    script = (ROOT / "kit" / "doctor" / "vitals.sh").read_text()
    template = re.findall(r"inspect --format '(.*)'", script.split("section published")[1])[0]
    with HTTPServer(("127.0.0.1", 0), Engine) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.server_port}"
        done = docker.run("-H", address, "inspect", "--format", template, "abc")
        server.shutdown()
    assert (done.stdout, done.stderr) == ("abc|lab |9000 |\n", "")


@pytest.mark.parametrize(("swarm", "group"), [(True, "train-digits"), (False, "pool_train-digits")])
def test_containers_of_the_plan_may_see_their_gpus(*, swarm: bool, group: str) -> None:
    """With Compose each of them was to be ended: KIT-GPU-008."""
    own = replace(container("train", group), requested=(TITAN,))
    vitals = replace(VITALS, containers=(own,))
    wanted = replace(WANTED, swarm=swarm)
    report = replace(REPORT, vitals=vitals)
    assert host_codes.VOID.id not in bad(check_all([report], wanted))
    other = replace(vitals, containers=(replace(own, group="other"),))
    assert host_codes.VOID.id in bad(check_all([replace(REPORT, vitals=other)], wanted))


GB = 10**9
ROOMS: list[tuple[int, int, bool, int | None, bool]] = [  # Size, free, volume, limit, enough?
    (100 * GB, 50 * GB, False, None, True),
    (100 * GB, 20 * GB, False, None, False),
    (100 * GB, 20 * GB, True, None, True),  # A part of the volume are these data sets.
    (25 * GB, 20 * GB, True, None, False),
    (100 * GB, 50 * GB, True, 29 * GB, False),
    (100 * GB, 50 * GB, True, 30 * GB, True),
]


@pytest.mark.parametrize(("size", "free", "there", "limit", "enough"), ROOMS)
def test_data_sets_that_do_not_fit(
    size: int, free: int, *, there: bool, limit: int | None, enough: bool
) -> None:
    need = DataNeed("kit-pool_datasets", (("cifar10", 10 * GB), ("imagenet@3", 20 * GB)), limit)
    volumes = frozenset({"kit-pool_datasets"} if there else ())
    found = of({"rooms": (Room("/", size, free),), "volumes": volumes}, {"data": need})
    assert found == ({} if enough else {"KIT-DATA-003": Verdict.WRONG})


def test_a_data_service_that_does_not_answer_is_named() -> None:
    sick = replace(OWN, health="unhealthy")
    assert of({"containers": (sick,)}) == {"KIT-DATA-004": Verdict.WRONG}
    assert of({"containers": (OWN,)}) == {}


def test_a_closed_port_of_a_service_is_named() -> None:
    hosts = tuple(replace(host, ports=(EXPORTER, METRICS)) for host in HOSTS)
    sound = {7946: "", 2377: ""}
    made = [
        way(start, end, tcp={**sound, 9100: "timed out" if end == "b" else ""})
        for start, end in PAIRS
    ]
    wanted = replace(WANTED, hosts=hosts, overlay="")
    found = links.check(replace(TRIED, links=tuple(made)), wanted)
    (bad_one,) = [each for each in found if each.verdict is not Verdict.OK]
    assert (bad_one.code, bad_one.host) == (codes.SERVICE_PORT, "b")
    assert bad_one.evidence == "a, c → b: the node exporter, 9100/tcp: timed out"


def test_the_doctor_reads_ports_and_health() -> None:
    text = """\
@@ listening
1F9A
0016
@@ containers
abc|/pool-platform_data-server.1|trainer|runc|pool-platform|<no value>|null|
@@ published
abc|bridge lab |8090 8090 |healthy
"""
    vitals = read_vitals(text)
    assert vitals.listening == {8090, 22}
    (one,) = vitals.containers
    assert (one.ports, one.host_network, one.health) == ((8090,), False, "healthy")


def test_the_plan_says_which_ports_and_data_sets_a_host_has(project: Project) -> None:
    inventory = INVENTORY.replace("[manager]", "[manager, storage]") + "data: {cache: 1GiB}\n"
    sets = "data: [cifar10, {name: unknown, version: 1}]\n"
    project.write(inventory, {"digits": JOB + sets})
    lowered = project.lowered()
    sizes = {("cifar10", 1): 5, ("cifar10", 2): 7, ("other", 1): 9}
    wanted = expectations(
        lowered, Paths(project.folder / "inventory.yaml", None, None, None), sizes=sizes
    )
    assert [[each.port.number for each in host.ports] for host in wanted.hosts] == [[8090], []]
    storage, other = (host.data for host in wanted.hosts)
    assert storage == DataNeed("kit-lab_datasets", (("cifar10", 7),))
    assert other == DataNeed("kit-lab_datasets", (("cifar10", 7),), 2**30)
