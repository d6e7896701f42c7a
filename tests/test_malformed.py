# ruff: noqa: E501 - a message is one line
"""Mistakes in the input: each is reported with its line, all at once, and nothing is written."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mistakes import (
    ADDED,
    BRACKETS,
    COMMANDS,
    DASHES,
    DOCUMENTS,
    INVENTORIES,
    JOBS,
    LAUGHS,
    LOCKS,
)
from tests.sandbox import DEADLINE, INVENTORY, JOB, ROOT, Project, kit, kit_process, snapshot

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
DANGEROUS = (BRACKETS, DASHES, LAUGHS)
"""These once crashed or blocked the process: they run in a separate one."""


def cases() -> list[Any]:
    """Return every case as inventory, jobs and the whole of stderr."""
    found = []

    def case(name: str, inventory: str | bytes, job: str, file: str, problems: list[str]) -> None:
        expected = "".join(f"{file}:{problem}\n" for problem in problems)
        found.append(pytest.param(inventory, {"digits": job}, expected, id=name))

    for name, old, new, problems in INVENTORIES:
        assert INVENTORY.count(old) == 1, name
        case(f"inventory: {name}", INVENTORY.replace(old, new), JOB, "inventory.yaml", problems)
    for name, text, problems in DOCUMENTS:
        case(f"document: {name}", text, JOB, "inventory.yaml", problems)
    for name, old, new, problems in JOBS:
        assert JOB.count(old) == 1, name
        case(f"job: {name}", INVENTORY, JOB.replace(old, new), "jobs/digits.yaml", problems)
    for line, problems in ADDED:
        case(f"job: {line}", INVENTORY, f"{JOB}{line}\n", "jobs/digits.yaml", problems)
    for line, problems in COMMANDS:
        case(f"job: {line}", INVENTORY, f"image: torch:2\n{line}\n", "jobs/digits.yaml", problems)
    return found


def without_library(text: str) -> str:
    """Leave out what the library that reads YAML says: another version says it otherwise."""
    return re.sub("(this is not valid YAML: ).+?(; look at )", r"\1…\2", text)


@pytest.mark.parametrize(("inventory", "jobs", "expected"), cases())
def test_a_mistake_is_answered_and_nothing_is_written(
    project: Project, inventory: str | bytes, jobs: dict[str, str], expected: str
) -> None:
    project.write(inventory, jobs)
    for older_tree in (False, True):
        if older_tree:
            (project.folder / "compose" / "lab").mkdir(parents=True)
            (project.folder / "compose" / "lab" / "plan.json").write_text("{}\n")
        there = snapshot(project.folder)
        run = kit_process if inventory in DANGEROUS else kit
        result = run(project.folder, "render")
        assert without_library(result.err) == expected
        assert (result.status, result.out) == (2, "")
        assert snapshot(project.folder) == there


def test_there_are_many_kinds() -> None:
    assert len({case.values[2] for case in cases()}) > 150


JOB_FILES: list[tuple[dict[str, str], str]] = [
    (
        {"My Job.yaml": JOB},
        "jobs/My Job.yaml:1: the file's name is the job's: 'My Job' is not a DNS label (at most 63 lower-case letters, digits, inner hyphens); write for example my-job\n",
    ),
    (
        {"digits.yaml": JOB, "digits.yml": JOB},
        "kit: jobs/digits.yaml and jobs/digits.yml are the same job\nrename one\n",
    ),
    (
        {"a": JOB, "b": JOB},
        "jobs/b.yaml:1: hosts: wants all GPUs of pc1, but GPU-a is already assigned to job a (jobs/a.yaml:1); give each its own hosts (`hosts: {names: …}`) or a share (`hosts: {gpus_per_host: 1}`)\n",
    ),
    (
        {"a": JOB + "hosts: {names: [pc2]}\n", "b": JOB + "hosts: {gpus_per_host: 1}\n"},
        "jobs/b.yaml:7: hosts.gpus_per_host: wants 1 GPU on pc2, which has 1 for training, 1 of them assigned to job a (jobs/a.yaml:7); write a smaller number, or name the hosts that have as many (`hosts: {names: …}`)\n",
    ),
    (
        {"a": JOB + "hosts: {names: [pc1], min: 2}\n"},
        "jobs/a.yaml:7: hosts.min: the job wants at least 2 hosts, 1 can take part; write 1\n",
    ),
    (
        {"x" * 52: JOB},
        f"jobs/{'x' * 52}.yaml:1: train-{'x' * 52}_train-on-pc1 is too long a name for a Swarm service (at most 63); shorten the job's or the host's name by 8 letters\n"
        f"jobs/{'x' * 52}.yaml:1: train-{'x' * 52}-launcher-00000000 is too long a name for a Swarm config (at most 64); shorten the job's name by 12 letters\n",
    ),
]


@pytest.mark.parametrize(("jobs", "expected"), JOB_FILES)
def test_jobs_that_do_not_go_together_are_refused(
    project: Project, jobs: dict[str, str], expected: str
) -> None:
    result = project.write(jobs=jobs).kit("render")
    assert (result.status, result.out, result.err) == (2, "", expected)
    assert not (project.folder / "compose").exists()


@pytest.mark.parametrize(("name", "lock", "problems"), LOCKS, ids=[name for name, *_ in LOCKS])
def test_a_lock_that_nobody_wrote_is_refused(
    project: Project, name: str, lock: str, problems: list[str]
) -> None:
    (project.write().folder / "images.lock").write_text(lock)
    anew = "; remove the file and run `kit image lock`"
    expected = [f"images.lock:{text}{'' if '; ' in text else anew}" for text in problems]
    for command in (["plan"], ["render"], ["image", "lock"]):
        result = project.kit(*command)
        assert (result.status, result.out) == (2, "")
        assert without_library(result.err).splitlines() == expected
    assert not (project.folder / "compose").exists()


def test_mistakes_in_a_lock_come_with_the_others(project: Project) -> None:
    project.write(INVENTORY.replace("cluster: lab", "cluster: Lab"))
    (project.folder / "images.lock").write_text("registry:2: latest\n")
    places = [line.split(" ")[0] for line in project.kit("plan").err.splitlines()]
    assert places == ["images.lock:1:", "inventory.yaml:1:"]


def test_two_jobs_on_one_port_of_a_host_are_refused(project: Project) -> None:
    inventory = INVENTORY.replace("{speed: 1Gbit}", "{driver: host}")
    job = JOB + "rendezvous: {port: 29500}\nhosts: "
    jobs = {"a": f"{job}{{names: [pc1]}}\n", "b": f"{job}{{names: [pc2]}}\n"}
    result = project.write(inventory, jobs).kit("render")
    assert result.err == (
        "jobs/b.yaml:7: rendezvous.port: port 29500 of pc1 is already used by job a (jobs/a.yaml:7); "
        "write `rendezvous: {port: 29501}`\n"
    )
    assert result.status == 2


@pytest.mark.parametrize("section", ["rendezvous", "metrics"])
def test_the_registry_has_its_port_for_itself(project: Project, section: str) -> None:
    inventory = INVENTORY.replace("{speed: 1Gbit}", "{driver: host}")
    inventory += "registry: {address: registry.lab:5000, host: pc1}\n"
    job = f"{JOB}{section}: {{port: 5000}}\n"
    result = project.write(inventory, {"a": job}).kit("render")
    assert result.status == 2
    assert result.err == (
        f"jobs/a.yaml:7: {section}.port: port 5000 of pc1 is already used by the registry "
        f"(inventory.yaml:15); write `{section}: {{port: 5001}}`\n"
    )


OWN_PORT = 30307  # 29400 + zlib.crc32(b"a") % 1000


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        (9500, 9600, ""),
        (
            9500,
            9500,
            "jobs/b.yaml:7: metrics.port: port 9500 of pc2 is already used by job a (jobs/a.yaml:7); write `metrics: {port: 9501}`\n",
        ),
        (
            OWN_PORT,
            9500,
            f"jobs/a.yaml:7: metrics.port: port {OWN_PORT} of pc2 is already used by job a (jobs/a.yaml:1); write `metrics: {{port: {OWN_PORT + 1}}}`\n",
        ),
    ],
)
def test_metrics_want_a_port_of_their_own(
    project: Project, first: int, second: int, problem: str
) -> None:
    inventory = INVENTORY.replace("{speed: 1Gbit}", "{driver: host}")
    inventory = inventory.replace("{uuid: GPU-c, use: inference}", "{uuid: GPU-c}")
    inventory = inventory.replace("    roles: [manager]\n", "").replace(
        "address: 192.168.8.114", "address: 192.168.8.114\n    roles: [manager]"
    )
    hosts = "hosts: {names: [pc2], gpus_per_host: 1}\n"
    jobs = {
        name: f"{JOB}metrics: {{port: {port}}}\n{hosts}"
        for name, port in (("a", first), ("b", second))
    }
    assert project.write(inventory, jobs).kit("plan").err == problem


def test_one_host_by_compose_publishes_a_port_once(project: Project) -> None:
    inventory = "cluster: lab\nengine: compose\nhosts:\n  pc1: {address: 10.0.0.1, gpus: 2}\n"
    job = f"{JOB}metrics: {{port: 9500}}\nhosts: {{gpus_per_host: 1}}\n"
    result = project.write(inventory, {"a": job, "b": job}).kit("render")
    assert "port 9500 of pc1 is already used by job a" in result.err
    tree = project.write(inventory, {"a": job}).rendered()
    project_file = yaml.safe_load((tree / "hosts" / "pc1" / "train-a.compose.yaml").read_text())
    assert project_file["services"]["train"]["ports"] == [
        {"target": 9500, "published": "9500", "protocol": "tcp"}
    ]


def test_a_job_finds_no_gpu(project: Project) -> None:
    inventory = "cluster: lab\nhosts:\n  pc1: {address: 10.0.0.1}\n"
    result = project.write(inventory).kit("plan")
    assert result.err == (
        "jobs/digits.yaml:1: no host has a GPU for training; "
        "give a host `gpus:` in the inventory, or set `use: training`\n"
    )


def test_too_many_managers_are_refused(project: Project) -> None:
    inventory = 'cluster: lab\nhosts:\n  "m[1-8]": {address: "10.0.0.[1-8]", roles: [manager]}\n'
    result = project.write(inventory, {}).kit("plan")
    assert result.err == (
        "inventory.yaml:3: hosts.m[1-8].roles: 8 hosts are managers; a Swarm takes 1, 3, 5 or 7: leave some out\n"
    )


def test_a_cluster_with_too_long_a_name_is_refused(project: Project) -> None:
    name = "c" * 50
    result = project.write(INVENTORY.replace("lab", name)).kit("plan")
    assert result.err == (
        f"inventory.yaml:1: cluster: {name} is too long: <cluster>-platform_network is a Swarm service; write at most 46 letters\n"
    )


def test_a_large_cluster_is_not_listed_whole(project: Project) -> None:
    inventory = 'cluster: lab\nhosts:\n  "gpu[1-900]": {address: 10.0.0.1-10.0.3.132, gpus: 1, roles: []}\n  m: {address: 10.1.0.1, roles: [manager]}\n'
    result = project.write(inventory, {"a": JOB + "hosts: {names: [xyz]}\n"}).kit("plan")
    assert (
        "jobs/a.yaml:7: hosts.names[0]: xyz is not in the inventory; use one of gpu1, gpu2,"
        in result.err
    )
    assert len(result.err) < 400


def test_mistakes_of_all_files_come_at_once_in_their_order(project: Project) -> None:
    inventory = (
        INVENTORY.replace("cluster: lab", "cluster: Lab")
        .replace("pc2:", "pc_2:")
        .replace("GPU-c", "GPU-b")
        .replace("1Gbit", "1GB")
        + "  pc3: {address: 192.168.8.151, gpus: 1}\nnetwrk: {}\n"
    ).replace("network: {speed: 1GB}\n  pc3", "  pc3")
    jobs = {
        "b": JOB.replace("epochs: 10", "epochs: 0"),
        "a": JOB.replace("digits", "digit") + "mounts:\n  - {bind: /a}\n  - {bind: b, to: /b}\n",
    }
    result = project.write(inventory, jobs).kit("render")
    places = [line.split(" ", 2)[:2] for line in result.err.splitlines()]
    assert places == [
        ["inventory.yaml:1:", "cluster:"],
        ["inventory.yaml:9:", "hosts.pc_2:"],
        ["inventory.yaml:14:", "hosts.pc3.address:"],
        ["inventory.yaml:15:", "netwrk:"],
        ["jobs/a.yaml:3:", "train.dataset:"],
        ["jobs/a.yaml:8:", "mounts[0].to:"],
        ["jobs/a.yaml:9:", "mounts[1].bind:"],
        ["jobs/b.yaml:5:", "train.epochs:"],
    ]


def test_faults_of_hosts_and_of_the_cluster_come_at_once(project: Project) -> None:
    inventory = (
        INVENTORY.replace("192.168.8.114", "192.168.8.151")
        .replace("roles: [manager]", "roles: []")
        .replace("{speed: 1Gbit}", "{subnet: 192.168.0.0/16}")
    )
    result = project.write(inventory).kit("render")
    assert [line.split(" ", 2)[1] for line in result.err.splitlines()] == [
        "hosts:",
        "hosts.pc2.address:",
        "network.subnet:",
    ]


@pytest.mark.parametrize(
    "command", [["plan"], ["plan", "--json"], ["render", "--check"], ["render", "--diff"]]
)
def test_every_command_answers_the_same(project: Project, command: list[str]) -> None:
    project.write(INVENTORY.replace("cluster: lab", "cluster: Lab"))
    expected = project.kit("render").err
    result = project.kit(*command)
    assert (result.status, result.out, result.err) == (2, "", expected)


def test_a_process_answers_the_same(project: Project) -> None:
    project.write(INVENTORY.replace("cluster: lab", "cluster: Lab"))
    expected = project.kit("render").err
    result = kit_process(project.folder, "render")
    assert (result.status, result.out, result.err) == (2, "", expected)


FILES: list[tuple[str, list[str], str]] = [
    (
        "no inventory",
        ["plan", "-i", "other.yaml"],
        "kit: other.yaml: there is no such file\nwrite one with `kit init .`, or name one with --inventory FILE\n",
    ),
    (
        "no jobs",
        ["plan", "--jobs", "work"],
        "kit: work: there is no such folder\ndescribe a job in jobs/<name>.yaml, or name the folder with --jobs DIR\n",
    ),
    ("a folder", ["plan", "-i", "jobs"], "kit: jobs: cannot be read: Is a directory\n"),
    (
        "no templates",
        ["render", "--templates", "mine"],
        "kit: mine: there is no such folder of templates\n",
    ),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), FILES)
def test_files_that_are_not_there(
    project: Project, name: str, arguments: list[str], expected: str
) -> None:
    result = project.write().kit(*arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(expected)


ENDLESS = [
    ("inventory.yaml", ["plan"], "pipe"),
    ("inventory.yaml", ["plan"], "/dev/zero"),
    ("jobs/pipe.yaml", ["plan"], "pipe"),
    ("serve/pipe.yaml", ["plan"], "/dev/zero"),
    ("images.lock", ["plan"], "pipe"),
    ("mine/platform.stack.yaml.j2", ["render", "--templates", "mine"], "/dev/zero"),
]


@pytest.mark.parametrize(("name", "arguments", "device"), ENDLESS)
def test_a_pipe_or_a_device_is_no_input(
    project: Project, name: str, arguments: list[str], device: str
) -> None:
    path = project.write().folder / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if device == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(device)
    result = kit_process(project.folder, *arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"kit: {name}: ")
    assert "a pipe or a device" in result.err or "this is not a file" in result.err


@pytest.mark.parametrize("folder", ["jobs", "serve", "mine/hosts", "compose/lab/hosts"])
def test_a_folder_that_may_not_be_read_is_told(project: Project, folder: str) -> None:
    project.write().rendered()
    path = project.folder / folder
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0)
    options = ["--templates", "mine"] if folder.startswith("mine") else []
    libc = ctypes.CDLL(None)

    def without_override() -> None:
        """Root can read all files, unless these capabilities are dropped."""
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)

    try:
        done = subprocess.run(
            [sys.executable, "-m", "kit", "render", *options],
            cwd=project.folder,
            preexec_fn=without_override,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    finally:
        path.chmod(0o755)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"kit: {folder}")
    assert done.stderr.endswith(": cannot be read: Permission denied\n")


def test_a_file_that_nobody_has_written_by_hand_is_not_read(project: Project) -> None:
    with (project.write().folder / "jobs" / "huge.yaml").open("wb") as file:
        file.truncate(2**40)
    result = kit_process(project.folder, "plan")
    assert result.err == "kit: jobs/huge.yaml: cannot be read: it has more than 16MiB\n"
    assert result.status == 2


def test_only_the_first_of_many_mistakes_are_told(project: Project) -> None:
    result = project.write(INVENTORY + "".join(f"k{n}: 1\n" for n in range(20_000))).kit("plan")
    assert result.status == 2
    *lines, last = result.err.splitlines()
    assert len(lines) == 100
    assert last == "only the first 100 mistakes are listed"


def test_what_many_hosts_share_is_one_mistake(project: Project) -> None:
    hosts = [f"  n{n}: {{address: 10.0.0.{n}, gpus: 1, speed: 1GB}}" for n in range(1, 200)]
    inventory = INVENTORY.replace("network:", "\n".join([*hosts, "network:"]))
    assert project.write(inventory).kit("plan").err == (
        "inventory.yaml:14: hosts.n1.speed: '1GB' has the unit GB, but links are measured in Mbit "
        "or Gbit (per second); write for example 8Gbit (198 more like it)\n"
    )


def test_two_ranges_that_overlap_are_one_mistake(project: Project) -> None:
    ranges = (
        '  "a[1-99]": {address: "10.0.0.[1-99]", gpus: 1}\n'
        '  "b[1-99]": {address: "10.0.0.[1-99]", gpus: 1}\n'
    )
    result = project.write(INVENTORY.replace("network:", f"{ranges}network:")).kit("plan")
    assert result.err == (
        "inventory.yaml:15: hosts.b[1-99].address: 10.0.0.1 is already the address of a1 (line 14); "
        "give each host its own address\n"
    )


def test_a_file_that_could_be_meant_for_a_job_is_told(project: Project) -> None:
    result = project.write(jobs={"digits": JOB, "k.YAML": JOB}).kit("plan")
    fix = "rename it to k.yaml"
    assert result.err == f"kit: jobs/k.YAML: a job's file ends in .yaml or .yml\n{fix}\n"
    assert result.status == 2


def test_an_editors_lock_is_no_job(project: Project) -> None:
    project.write()
    (project.folder / "jobs" / ".#digits.yaml").symlink_to("somebody@pc1.1234")
    assert project.kit("plan").status == 0


EXAMPLES = [ROOT, *sorted((ROOT / "tests" / "examples").iterdir())]
NODES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["pc1", "GPU-a", "1Gbit", "24GiB", "overlay", "host", "big[01-08]", "10.0.0.[1-3]", "/data", "[key]", "<list>"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    return [path, *(place for key, child in items for place in places(child, (*path, key)))]


def mutated(data: st.DataObject, document: Any) -> Any:
    """Delete, replace, rename or insert a node somewhere."""
    path = data.draw(st.sampled_from(places(document)))
    new = data.draw(NODES)
    if not path:
        return new if data.draw(st.booleans()) else document
    parent = document
    for part in path[:-1]:
        parent = parent[part]
    key = path[-1]
    match data.draw(st.sampled_from(["delete", "replace", "rename", "insert"])):
        case "delete":
            del parent[key]
        case "replace":
            parent[key] = new
        case "rename" if isinstance(parent, dict):
            parent[
                data.draw(st.text(max_size=8) | st.sampled_from(["pc1", "uuid", "gpus", "<list>"]))
            ] = parent.pop(key)
        case _ if isinstance(parent, dict):
            parent[data.draw(st.text(max_size=8))] = new
        case _:
            parent.insert(key, new)
    return document


PROBLEM = re.compile(r"(inventory\.yaml|jobs/[^/]+\.ya?ml):\d+: \S.*; \S.*")


CHANGED = given(data=st.data(), example=st.sampled_from(EXAMPLES), changes=st.integers(1, 3))


@settings(max_examples=100)
@CHANGED
def test_whatever_is_changed_in_an_example_kit_answers(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, example: Path, changes: int
) -> None:
    answers(Project(tmp_path_factory.mktemp("fuzz")), data, example, changes)


@pytest.mark.long
@settings(max_examples=1000)
@CHANGED
def test_whatever_is_changed_in_an_example_kit_answers_for_long(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, example: Path, changes: int
) -> None:
    answers(Project(tmp_path_factory.mktemp("fuzz")), data, example, changes)


def answers(project: Project, data: st.DataObject, example: Path, changes: int) -> None:
    """Change an example somewhere: it is rendered, or each mistake is told."""
    jobs = (example / "jobs").glob("*.yaml")
    files = {path.stem: yaml.safe_load(path.read_text()) for path in jobs}
    files[""] = yaml.safe_load((example / "inventory.yaml").read_text())
    for _ in range(changes):
        name = data.draw(st.sampled_from(sorted(files)))
        files[name] = mutated(data, files[name])
    texts = {name: yaml.safe_dump(file, allow_unicode=True) for name, file in files.items()}
    project.write(texts.pop(""), texts)
    plan = project.kit("plan")
    result = project.kit("render")
    assert plan.err == result.err
    if result.status == 0:
        assert result.err == ""
    else:
        assert (result.status, result.out) == (2, "")
        assert [line for line in result.err.splitlines() if not PROBLEM.fullmatch(line)] == []
        assert not (project.folder / "compose").exists()
