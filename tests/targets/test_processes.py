"""The processes that the local engine would start, and their GPUs: pure values."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from kit.targets.local.gpus import visible_devices
from kit.targets.local.lower import Places, on_this_machine, processes
from kit.targets.local.observe import local_gpus
from kit.workload.types import Workload
from tests.sandbox import JOB, Project

INVENTORY = """\
cluster: lab
hosts:
  pc1: {address: 10.0.0.1, roles: [manager], gpus: [{uuid: GPU-a}]}
  pc2: {address: 10.0.0.2, gpus: [{uuid: GPU-b}, {uuid: GPU-c}]}
"""
PLACES = Places(
    python="/usr/bin/python3",
    launcher=PurePosixPath("/kit/launch.py"),
    tree=PurePosixPath("/tree"),
    folders=PurePosixPath("/state"),
    data=PurePosixPath("/state/data"),
    here=PurePosixPath("/home/me"),
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def planned(project: Project, job: str = JOB, inventory: str = INVENTORY) -> Workload:
    return project.write(inventory, {"j": job}).workload()


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (["GPU-c", "GPU-b", "GPU-a"], {"pc1": "GPU-a", "pc2": "GPU-b,GPU-c"}),
        (["GPU-x", "GPU-y", "GPU-z", "GPU-0"], {"pc1": "GPU-x", "pc2": "GPU-y,GPU-z"}),
        (["GPU-a", "GPU-b"], {"pc1": "", "pc2": ""}),
        ([], {"pc1": "", "pc2": ""}),
    ],
)
def test_the_plans_gpus_or_as_many_or_the_cpu(
    project: Project, present: list[str], expected: dict[str, str]
) -> None:
    assert visible_devices(planned(project), present) == expected


def test_the_gpus_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert local_gpus() == []
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\n"
        "echo 'GPU 0: A100 (UUID: GPU-aa)'\n"
        "echo '  MIG 1g.5gb Device 0: (UUID: MIG-bb)'\n"
        "echo '  MIG 1g.5gb Device 1: (UUID: MIG-dd)'\n"
        "echo 'GPU 1: A100 (UUID: GPU-cc)'\n"
    )
    smi.chmod(0o755)
    assert local_gpus() == ["MIG-bb", "MIG-dd", "GPU-cc"]
    smi.write_text("#!/bin/sh\necho 'Failed to initialize NVML'; exit 255\n")
    assert local_gpus() == []


def test_one_agent_for_each_host_and_one_store(project: Project) -> None:
    job = planned(project, JOB + "environment: {OMP_NUM_THREADS: 3, MODE: fast}\n")
    store, first, second = processes(job, PLACES, {"pc1": "GPU-a", "pc2": ""}, cores=2)
    assert (store.part, store.workers) == ("rendezvous", 0)
    assert store.argv[1:] == ("/kit/launch.py", "coordinator")
    assert [(agent.host, agent.workers) for agent in (first, second)] == [("pc1", 1), ("pc2", 2)]
    assert first.argv[1:] == ("/kit/launch.py",)
    variables = dict(second.variables)
    assert variables["KIT_JOB"] == "/tree/jobs/j.json"
    assert variables["KIT_RENDEZVOUS"] == dict(store.variables)["KIT_RENDEZVOUS"]
    assert variables["KIT_NPROC"] == "2"
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "GPU-b,GPU-c"
    assert variables["CUDA_VISIBLE_DEVICES"] == ""
    assert (variables["OMP_NUM_THREADS"], variables["MODE"]) == ("3", "fast")
    assert dict(first.variables)["CUDA_VISIBLE_DEVICES"] == "GPU-a"


@pytest.mark.parametrize(
    ("path", "pc1", "pc2"),
    [
        ("/data/mnist", "/state/data/mnist", "/state/data/mnist"),
        ("/checkpoints", "/state/j/pc1/kit-j-checkpoints", "/state/j/pc2/kit-j-checkpoints"),
        ("/src/project/a", "/home/me/project/a", "/home/me/project/a"),
        ("/src/project/lib/x", "/usr/lib/x", "/usr/lib/x"),
        ("/cache", "/state/j/pc1/mine", "/state/j/pc2/mine"),
        ("/elsewhere", "/elsewhere", "/elsewhere"),
    ],
)
def test_folders_of_the_container_on_this_machine(
    project: Project, path: str, pc1: str, pc2: str
) -> None:
    job = planned(
        project,
        JOB + "mounts:\n"
        "  - {bind: /home/me/project, to: /src/project}\n"
        "  - {bind: /usr/lib, to: /src/project/lib}\n"
        "  - {volume: mine, to: /cache}\n",
    )
    assert str(on_this_machine(path, job, "pc1", PLACES)) == pc1
    assert str(on_this_machine(path, job, "pc2", PLACES)) == pc2


def test_what_nfs_shares_is_one_folder(project: Project) -> None:
    job = planned(project, JOB + 'mounts: [{nfs: "10.0.0.9:/export", to: /checkpoints}]\n')
    places = {on_this_machine("/checkpoints", job, host, PLACES) for host in ("pc1", "pc2")}
    assert len(places) == 1
    assert project.plan().jobs[0].shared_checkpoints
