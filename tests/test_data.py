"""Data sets: validation, the plan, the files of each target, and uploads."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit.config.data import PEER_PORT, PORT
from kit.datasets.cluster import DataCluster
from kit.datasets.upload import Upload, upload_of
from kit.errors import InputError, KitError
from kit.model import DataSet, Host
from kit.plan.data import DEFAULTS, DataPlan, fetch_seconds, stream_rates
from tests.conftest import Docker
from tests.sandbox import COMMAND, INVENTORY, JOB, Project, document_text

STORED = INVENTORY.replace("roles: [manager]", "roles: [manager, storage]")
NEEDS = JOB + "data: [digits, {name: imagenet, version: 3}]\n"
IMAGE = "registry.lab:5000/trainer:0.2.0"


def test_the_defaults_of_both_sides_are_the_same() -> None:
    assert (DEFAULTS.port, DEFAULTS.peer_port) == (PORT, PEER_PORT)


MISTAKES = [
    (INVENTORY, NEEDS, "jobs/digits.yaml:7: data: no host stores the data sets; give one host the "
     "role: `pc1: {roles: [manager, storage], …}`"),
    (STORED.replace("  pc2:\n", "  pc2:\n    roles: [storage]\n"), NEEDS,
     "inventory.yaml:10: hosts.pc2.roles: pc2 and pc1 both store the data sets; leave the role "
     "storage to one of them"),
    (STORED, JOB + "data: cifar10\n",
     "jobs/digits.yaml:7: data: is a list; write `data: [cifar10]`"),
    (STORED, JOB + "data: [cifar10@1]\n", "write `{name: cifar10, version: 1}`"),
    (STORED, JOB + "data: [../etc]\n", "is not the name of a data set"),
    (STORED, JOB + "data: [a, {name: a, version: 2}]\n",
     "jobs/digits.yaml:7: data[1]: a is named twice; keep one of the two"),
    (STORED, JOB + "data: [{name: a, version: 0}]\n", "jobs/digits.yaml:7: data[0].version:"),
    (STORED, JOB + "data: [7]\n", "is not a data set; write its name"),
    (STORED, NEEDS + "mounts: [{bind: /srv, to: /datasets}]\n",
     "jobs/digits.yaml:8: mounts[0].to: /datasets holds the data sets of `data:`"),
    (STORED + "data: {port: 6882}\n", JOB, "data.port: 6882 is a port of the agents"),
    (STORED + "data: {cache: 100}\n", JOB, "data.cache: 100 has no unit"),
    (STORED + "registry: {address: 'pc1:8090', host: pc1}\ndata: {}\n", JOB,
     "data.port: 8090 is the port of the registry on pc1"),
    (STORED, COMMAND + "data: [cifar10]\n",
     "jobs/digits.yaml:3: data: the data services run in the trainer's image, and no job with "
     "`train:` names it; write `data: {image: …}` in the inventory"),
]  # fmt: skip


@pytest.mark.parametrize(("inventory", "job", "message"), MISTAKES)
def test_a_mistake_has_its_line(project: Project, inventory: str, job: str, message: str) -> None:
    result = project.write(inventory, {"digits": job}).kit("plan")
    assert result.status == 2
    assert message in result.err


def test_a_port_of_a_job_that_the_data_services_use(project: Project) -> None:
    inventory = STORED.replace("{speed: 1Gbit}", "{speed: 1Gbit, driver: host}")
    job = NEEDS + "rendezvous: {port: 6882}\n"
    result = project.write(inventory + "data: {}\n", {"digits": job}).kit("plan")
    assert "port 6882 of pc1 is already used by the data services" in result.err


def test_a_cluster_without_data_has_no_services(project: Project) -> None:
    tree = project.write(STORED).rendered()
    text = "".join(path.read_text() for path in tree.rglob("*") if path.is_file())
    assert "datasets" not in text
    assert '"data"' not in (tree / "plan.json").read_text()


@pytest.fixture
def stack(project: Project) -> dict[str, Any]:
    tree = project.write(STORED, {"digits": NEEDS}).rendered()
    return {path.name: yaml.safe_load(path.read_text()) for path in tree.glob("*.stack.yaml")}


def test_a_swarm_has_the_services_in_its_platform(stack: dict[str, Any]) -> None:
    platform = stack["platform.stack.yaml"]
    server, storage, agent = (
        platform["services"][name] for name in ("data-server", "data-storage", "data-agent")
    )
    for service in (server, storage, agent):
        assert service["image"] == IMAGE
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)
        assert service["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert server["user"] == "65534:65534"
    assert server["volumes"][1] == {
        "type": "volume", "source": "datasets", "target": "/store", "read_only": True,
    }  # fmt: skip
    assert server["ports"] == [
        {"target": 8090, "published": 8090, "protocol": "tcp", "mode": "host"}
    ]
    assert "ports" not in agent
    assert agent["deploy"]["mode"] == "global"
    assert [each["deploy"]["placement"]["constraints"] for each in (server, storage, agent)] == [
        ["node.labels.kit.data == storage"],
        ["node.labels.kit.data == storage"],
        ["node.labels.kit.data == agent"],
    ]
    assert storage["command"][-2:] == ["--store", "/cache"]
    words = agent["command"]
    assert words[words.index("--server") + 1] == "http://lab-platform_data-server:8090"
    assert words[words.index("--peers") + 1] == (
        "tasks.lab-platform_data-storage:6881,tasks.lab-platform_data-agent:6881"
    )
    assert platform["volumes"]["datasets"]["name"] == "kit-lab_datasets"


def test_a_job_gets_the_names_and_the_folder(stack: dict[str, Any]) -> None:
    services = stack["train-digits.stack.yaml"]["services"]
    service = services["train-on-pc1"]
    assert json.loads(service["environment"]["KIT_DATA_SETS"]) == [
        {"name": "digits"},
        {"name": "imagenet", "version": 3},
    ]
    mounts = {mount["target"]: mount for mount in service["volumes"]}
    assert mounts["/datasets"] == {
        "type": "volume", "source": "kit-lab_datasets", "target": "/datasets", "read_only": True,
    }  # fmt: skip


def test_nodes_have_the_label_of_their_service(project: Project) -> None:
    inventory = STORED + "data: {cache: 100GiB}\n"
    inventory = inventory.replace("network:", "  pc3: {address: 192.168.8.9}\nnetwork:")
    tree = project.write(inventory).rendered()
    text = (tree / "label-nodes.sh").read_text()
    for host, label in (("pc1", "storage"), ("pc2", "agent"), ("pc3", "none")):
        assert re.search(rf"--label-add kit\.data={label} .*{host} \|\|", text)
    platform = yaml.safe_load((tree / "platform.stack.yaml").read_text())["services"]
    assert platform["data-agent"]["command"][-2:] == ["--size", str(100 * 2**30)]
    assert "--size" not in platform["data-storage"]["command"]


def test_hosts_on_their_own_network_are_each_others_peers(project: Project) -> None:
    inventory = STORED.replace("{speed: 1Gbit}", "{speed: 1Gbit, driver: host}")
    tree = project.write(inventory, {"digits": NEEDS}).rendered()
    platform = yaml.safe_load((tree / "platform.stack.yaml").read_text())
    words = platform["services"]["data-agent"]["command"]
    assert words[words.index("--server") + 1] == "http://192.168.8.151:8090"
    assert words[words.index("--peers") + 1] == "192.168.8.151:6881,192.168.8.114:6881"
    assert platform["services"]["data-server"]["networks"] == ["host"]
    assert "ports" not in platform["services"]["data-server"]


def test_compose_has_a_project_on_each_host(project: Project, docker: Docker) -> None:
    inventory = STORED.replace("engine: swarm", "engine: compose")
    tree = project.write(inventory, {"digits": NEEDS}).rendered()
    files = {
        host: yaml.safe_load((tree / "hosts" / host / "data.compose.yaml").read_text())
        for host in ("pc1", "pc2")
    }
    assert list(files["pc1"]["services"]) == ["data-server", "data-storage"]
    assert list(files["pc2"]["services"]) == ["data-agent"]
    agent = files["pc2"]["services"]["data-agent"]
    ports = [(port["host_ip"], port["published"]) for port in agent["ports"]]
    assert ports == [("192.168.8.114", "6881"), ("192.168.8.114", "6882")]
    assert agent["security_opt"] == ["no-new-privileges:true"]
    assert files["pc2"]["name"] == "lab_data"
    for host in files:
        result = docker.run(
            "compose", "-f", f"hosts/{host}/data.compose.yaml", "config", folder=tree
        )
        assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("name", ["platform", "train-digits"])
def test_docker_takes_the_stacks(project: Project, docker: Docker, name: str) -> None:
    tree = project.write(STORED + "data: {}\n", {"digits": NEEDS}).rendered()
    result = docker.run("stack", "config", "-c", f"{name}.stack.yaml", folder=tree)
    assert (result.returncode, result.stderr) == (0, "")


FETCHES = [
    (10**9, 10**9, [], 0.0),
    (125 * 10**6, 10**9, [10**9], 1.0),  # One host: as long as a copy.
    (125 * 10**6, 10**9, [10**9] * 8, 1.0),  # Eight hosts: they give pieces to each other.
    (125 * 10**6, 10**9, [10**9, 10**8], 10.0),  # The slowest host has to receive all.
    (125 * 10**6, 10**8, [10**9], 10.0),  # The source has to send all.
    (125 * 10**6, 10**9, [10**10] * 20, 1.0),
]


@pytest.mark.parametrize(("size", "source", "speeds", "seconds"), FETCHES)
def test_the_time_of_a_fetch(size: int, source: int, speeds: list[int], seconds: float) -> None:
    assert fetch_seconds(size, source, speeds) == pytest.approx(seconds)


def test_the_plan_has_the_time_of_the_first_fetch(project: Project) -> None:
    project.write(STORED, {"digits": NEEDS})
    assert "imagenet@3 on pc1, of unknown size" in project.kit("plan").out
    listed = [{"name": "imagenet", "version": v, "bytes": v * 10**9} for v in (3, 4)]
    (project.folder / "datasets.json").write_text(json.dumps({"datasets": listed}))
    shown = project.kit("plan").out
    assert (
        "data        imagenet@3 on pc1, 3 GB: the first fetch by 1 host takes 24 s over 1Gbit"
        in (shown)
    )
    (job,) = json.loads(project.kit("plan", "--json").out)["jobs"]
    assert [each["seconds"] for each in job["fetches"]] == [None, 24.0]
    (project.folder / "datasets.json").write_text("[]")
    result = project.kit("plan")
    assert (result.status, "delete it and run `kit data ls`" in result.err) == (2, True)


def test_a_new_data_set_changes_the_version_of_a_job(project: Project) -> None:
    before = project.write(STORED).workload()
    after = project.write(STORED, {"digits": NEEDS}).workload()
    assert before.job_hash != after.job_hash
    assert after.data == (DataSet("digits", None), DataSet("imagenet", 3))


REFUSED = [
    (["ls"], "has no data services"),
    (["add", "x", "nothing"], "has no data services"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_data_needs_services(project: Project, arguments: list[str], message: str) -> None:
    project.write().rendered()
    result = project.kit("data", *arguments)
    assert (result.status, message in result.err) == (2, True)


SLIPS = [
    (["add", "../x", "."], "is not the name of a data set"),
    (["add", "x", "nothing"], "nothing: there is no such file or folder here"),
    (["add", "x", "pc2:/srv"], "pc2 is not the host that stores the data sets"),
    (["rm", "x", "--yes"], "x has no version"),
    (["rm", "x@0"], "'0' is not a version"),
    (["prefetch", "x", "pc9"], "no data agent is planned for pc9"),
]


@pytest.mark.parametrize(("arguments", "message"), SLIPS)
def test_a_slip_changes_nothing(project: Project, arguments: list[str], message: str) -> None:
    project.write(STORED, {"digits": NEEDS}).rendered()
    result = project.kit("data", *arguments)
    assert (result.status, message in result.err) == (2, True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "flowers"
    for name, content in (
        ("a/1.png", b"x" * 700), ("a/2.png", b""), ("b.txt", b"y" * 512), ("é" * 60 + ".txt", b"z"),
    ):  # fmt: skip
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(content)
    return made


def stream(upload: Upload, offset: int = 0) -> bytes:
    return b"".join(upload.read(offset))


def test_a_folder_is_an_archive(folder: Path) -> None:
    content = stream(upload_of(folder))
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        assert {name: file.read() for name, file in files.items() if file} == {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }


def test_hidden_files_are_left_out_and_named(folder: Path) -> None:
    whole = stream(upload_of(folder))
    for name in (".git/HEAD", "a/.ipynb_checkpoints/1.png", "a/@eaDir/1.png", "Thumbs.db"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"no sample")
    (folder / ".git" / "link").symlink_to("HEAD")
    upload = upload_of(folder)
    assert stream(upload) == whole
    assert upload.left_out == (".git", "Thumbs.db", "a/.ipynb_checkpoints", "a/@eaDir")


def test_an_upload_goes_on_at_any_byte(folder: Path) -> None:
    upload = upload_of(folder)
    whole = stream(upload)
    assert len(whole) == upload.total
    for offset in range(0, len(whole) + 1, 37):
        assert stream(upload, offset) == whole[offset:]
    assert upload_of(folder).name == upload.name
    (folder / "b.txt").write_bytes(b"more" * 512)
    assert upload_of(folder).name != upload.name


@pytest.mark.parametrize("name", ["set.tar.gz", "set.tar.bz2", "set.tar.zst", "SET.ZIP"])
def test_an_archive_is_sent_as_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"0123456789")
    upload = upload_of(path)
    assert (stream(upload, 4), upload.total) == (b"456789", 10)
    assert upload.name.endswith(name[3:].lower())


def test_a_folder_with_a_link_is_refused(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="is a link"):
        upload_of(folder)


def test_a_file_that_shrinks_meanwhile_is_noticed(folder: Path) -> None:
    upload = upload_of(folder)
    (folder / "b.txt").write_bytes(b"")
    with pytest.raises(KitError, match="became shorter"):
        stream(upload)


SHARDS = (
    JOB.replace("dataset: digits", "dataset: shards") + "data: [{name: flowers, stream: true}]\n"
)
READS = COMMAND + "data: [digits, {name: flowers, version: 2, stream: true}]\n"
STREAMS = STORED + 'data: {image: "trainer:1"}\n'
HOSTS_NETWORK = "speed: 1Gbit, driver: host"
SERVERS = [
    (STREAMS, "http://lab-platform_data-server:8090"),
    (STREAMS.replace("speed: 1Gbit", HOSTS_NETWORK), "http://192.168.8.151:8090"),
    (STREAMS.replace("engine: swarm", "engine: compose"), "http://192.168.8.151:8090"),
    (STREAMS.replace("engine: swarm", "engine: local"), "http://127.0.0.1:8090"),
]


@pytest.mark.parametrize(("inventory", "server"), SERVERS)
def test_a_streamed_set_has_an_address(project: Project, inventory: str, server: str) -> None:
    jobs = {"digits": SHARDS, "words": READS}
    for name, host in (("digits", "pc1"), ("words", "pc2")):
        jobs[name] += f"hosts: {{names: [{host}]}}\n"
    project.write(inventory, jobs)
    workload, script = map(project.lowered().workload, ("digits", "words"))
    document = json.loads(document_text(workload))
    assert document["train"]["url"] == f"{server}/flowers/newest/data"
    names = {each.name for part in workload.working for each in part.environment}
    assert not names & {"KIT_DATA_SETS", "KIT_DATA_URLS"}
    assert "/datasets" not in {mount.target for mount in workload.working[0].mounts}
    variables = {each.name: each.value for each in script.working[0].environment}
    assert json.loads(str(variables["KIT_DATA_SETS"])) == [{"name": "digits"}]
    urls = json.loads(str(variables["KIT_DATA_URLS"]))
    assert urls == {"flowers": f"{server}/flowers/2/data"}


STREAM_MISTAKES = [
    (JOB + "data: [{name: flowers, stream: true}]\n",
     "jobs/digits.yaml:7: data[0].stream: the built-in training streams `dataset: shards`, not "
     "digits; leave it out: each host fetches it"),
    (SHARDS.replace("}]", "}, {name: b, stream: true}]"),
     "jobs/digits.yaml:7: data[1].stream: the built-in training reads one data set; keep one"),
    (SHARDS.replace("shards\n", "shards\n  url: http://pc1/a\n"),
     "jobs/digits.yaml:4: train.url: the shards are those of the streamed data set; leave it out"),
    (SHARDS.replace("shards\n", "shards\n  path: a\n"), "train.path: "),
    (SHARDS.replace(", stream: true", ""), "train.path: is missing"),
    (SHARDS.replace("true", "yes please"), "data[0].stream: "),
]  # fmt: skip


@pytest.mark.parametrize(("job", "message"), STREAM_MISTAKES)
def test_a_mistake_in_a_stream_has_its_line(project: Project, job: str, message: str) -> None:
    result = project.write(STREAMS, {"digits": job}).kit("plan")
    assert result.status == 2
    assert message in result.err


def test_the_plan_says_what_the_links_allow_to_a_stream(project: Project) -> None:
    job = SHARDS.replace("epochs: 10", "epochs: 10\n  cache_gib: 5")
    project.write(STREAMS, {"digits": job})
    (project.folder / "datasets.json").write_text(
        json.dumps({"datasets": [{"name": "flowers", "version": 2, "bytes": 3 * 10**9}]})
    )
    shown = project.kit("plan").out
    line = "streams     flowers on pc1, 3 GB: the links allow 1 host 125 MB/s"
    assert line in shown
    (job,) = json.loads(project.kit("plan", "--json").out)["jobs"]
    assert job["data"] == [{"name": "flowers", "version": None, "stream": True}]
    assert job["fetches"] == []
    (stream,) = job["streams"]
    assert (stream["hosts"], stream["bytes_per_second"]) == (["pc2"], 125e6)
    assert json.loads(document_text(project.workload()))["train"]["cache_gib"] == 5


def test_hosts_share_the_link_of_the_storage_host() -> None:
    storage, *others = [
        Host(f"pc{number}", "", "", (), (), None, speed, ())
        for number, speed in enumerate([10**9, 10**9, 10**8, 10**9])
    ]
    plan = DataPlan(storage, (storage, *others), 8090, 6881, None, "volume", "image")
    sets = (DataSet("a", 1, stream=True),)
    for reading, most in ((others, 10**8), ([others[0], others[2]], 5 * 10**8), ([], None)):
        (found,) = stream_rates(plan, sets, [storage, *reading], {})
        assert found.rate == (most / 8 if most else None)


# -------- Credentials of sources

SECRETS = {
    "AWS_ACCESS_KEY_ID": "of-amazon",
    "AWS_SECRET_ACCESS_KEY": "of-amazon",
    "AWS_REGION": "eu",
    "HF_TOKEN": "of-the-hub",
    "KIT_PLAIN_HTTP": "1",
    "https_proxy": "http://proxy:3128",
    "GITHUB_TOKEN": "of-nobody",
}
AMAZON = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"}
RECORDER = """#!/bin/sh
{ printf '%s\\n' "$@"; echo ---; env; echo ---; cat; } >"$XDG_RECORD"
echo '{"state": "done", "name": "x", "version": 1, "bytes": 1, "files": 1}'
"""


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which a stand-in for docker writes its arguments, variables and input."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(RECORDER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RECORD", str(tmp_path / "record"))
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "record"


PASSED = [
    ("s3://pets/data", AMAZON | {"https_proxy"}),
    ("hf://kit/pets", {"HF_TOKEN", "https_proxy"}),
    ("http://pc9/pets.tar", {"KIT_PLAIN_HTTP", "https_proxy"}),
    ("torchvision:mnist", {"https_proxy"}),
    ("/srv/pets", set[str]()),
]


@pytest.mark.parametrize(("source", "names"), PASSED)
def test_a_source_gets_its_own_credentials_alone(
    recorded: Path, source: str, names: set[str]
) -> None:
    stored().add("x", source, (), lambda *_: None, source)
    arguments, environ, _ = recorded.read_text().split("---\n")
    passed = {name for name in SECRETS if f"--env={name}\n" in arguments}
    assert passed == names
    assert {name for name in names if f"{name}={SECRETS[name]}\n" in environ} == names
    assert not [value for value in SECRETS.values() if f"={value}" in arguments]
    assert "of-nobody" not in arguments + environ


def test_programs_without_a_source_get_no_credentials(recorded: Path) -> None:
    assert stored().programs().command("ls").count("--env=HF_TOKEN") == 0
    assert not [word for word in stored().programs().words if "AWS" in word or "proxy" in word]


def test_a_signed_address_is_in_no_process_list(recorded: Path) -> None:
    url = "https://pc9/pets.tar?X-Amz-Signature=0123abcd"
    stored().add("x", url, (), lambda *_: None, url)
    arguments, _, given = recorded.read_text().split("---\n")
    assert ("0123abcd" in arguments, given) == (False, url)


def stored() -> DataCluster:
    host = Host("pc1", "192.168.8.151", "", (), (), None, 10**9, ())
    return DataCluster("lab", DataPlan(host, (host,), 8090, 6881, None, "volume", "image"))
