"""Hostile text in every field of the user's files: it is refused, or it stays data."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.targets.swarm.stacks import EMPTY
from tests.sandbox import Project
from tests.test_privileges import check as check_privileges

INVENTORY: dict[str, Any] = {
    "cluster": "lab",
    "hosts": {
        "pc1": {
            "address": "192.168.8.151",
            "ssh": "me@pc1",
            "roles": ["manager", "storage"],
            "gpus": [
                {"uuid": "GPU-a", "model": "TITAN RTX", "memory": "24GiB"},
                {"uuid": "GPU-z", "model": "TITAN RTX", "memory": "24GiB"},
            ],
        },
        "pc2": {
            "address": "192.168.8.114",
            "gpus": [
                {"uuid": "GPU-b"},
                {"uuid": "GPU-c"},
                {"uuid": "GPU-d", "use": "inference"},
                {"uuid": "GPU-e", "use": "inference"},
            ],
        },
        "pc3": {"address": "192.168.8.115", "gpus": [{"uuid": "GPU-s", "use": "spare"}]},
    },
    "network": {"speed": "1Gbit", "subnet": "10.200.0.0/16", "nccl": {"NCCL_DEBUG": "INFO"}},
    "swarm": {"heartbeat": "2s"},
    "registry": {"address": "registry.lab:5000", "host": "pc1", "image": "registry:2"},
    "data": {"image": "registry.lab:5000/trainer:1", "cache": "10GiB"},
    "monitoring": {
        "host": "pc1",
        "retention": "30d",
        "alertmanager": "alerts.lab:9093",
        "password": "~/grafana",
        "images": {"prometheus": "prometheus:1", "grafana": "grafana:1"},
    },
}
JOB: dict[str, Any] = {
    "image": "registry.lab:5000/trainer:1",
    "train": {
        "dataset": "folder",
        "path": "pictures",
        "model": "cnn",
        "epochs": 1,
        "batch_size": 64,
    },
    "environment": {"MESSAGE": "hello"},
    "nccl": {"NCCL_ALGO": "Ring"},
    "secrets": {"WANDB_API_KEY": {"file": "~/key"}},
    "notify": [{"url": "https://hooks.lab/kit", "key": {"file": "~/hook-key"}}],
    "mounts": [
        {"bind": "/srv/pictures", "to": "/data"},
        {"volume": "weights", "to": "/weights"},
        {"nfs": "nas.lab:/export", "to": "/export"},
    ],
    "user": "1000:1000",
    "hosts": {"names": ["pc1"], "gpus_per_host": 1},
    "limits": {"memory": "8GiB"},
}
TEXT: dict[str, Any] = {
    "image": "registry.lab:5000/trainer:1",
    "train": {
        "dataset": "text",
        "path": "words",
        "model": "gpt",
        "options": {"preset": "gpt2"},
        "tokenizer": "gpt2/tokenizer.json",
        "epochs": 1,
        "batch_size": 1,
    },
    "exchange": {"mode": "every_step", "timeout": "60s"},
    "faults": {"memory": "leave_out", "window": "30m"},
    "hosts": {"names": ["pc1"], "gpus_per_host": 1},
}
SCRIPT: dict[str, Any] = {
    "image": "pytorch/pytorch:2",
    "command": ["ddp.py", "--name", "first"],
    "working_dir": "/srv/work",
    "setup": ["pip install --quiet einops"],
    "checkpoint": {"files": ["snapshot.pt"]},
    "data": [{"name": "cifar10"}],
    "hosts": {"names": ["pc2", "pc3"], "gpus_per_host": 1},
}
SERVER: dict[str, Any] = {
    "image": "registry.lab:5000/trainer:1",
    "job": "first",
    "checkpoint": "newest",
    "token": {"env": "TOKEN"},
    "allowed_hosts": ["digits.example.com"],
    "environment": {"GREETING": "hello"},
    "user": "1000",
    "hosts": {"gpus_per_host": 1},
}
OTHER: dict[str, Any] = {
    "image": "vllm/vllm-openai:v0.11.0",
    "command": ["vllm", "serve", "/model"],
    "port": 8000,
    "health": "/health",
    "working_dir": "/srv",
    "mounts": [{"bind": "/srv/models", "to": "/model", "read_only": True}],
    "secrets": {"HF_TOKEN": {"file": "~/token"}},
    "hosts": {"names": ["pc2"], "gpus_per_host": 1},
    "proxy": {"port": 80, "host": "pc1", "image": "haproxy:3.2"},
    "environment": {"VLLM_LOGGING_LEVEL": "INFO"},
}
FILES = {
    "inventory.yaml": INVENTORY,
    "jobs/first.yaml": JOB,
    "jobs/second.yaml": SCRIPT,
    "jobs/third.yaml": TEXT,
    "serve/first.yaml": SERVER,
    "serve/second.yaml": OTHER,
}
SNIPPETS = [
    *("$(touch /tmp/x)", "`id`", "${HOME}", "$HOME", "$$", "; id", "&& id", "| id", "' id '"),
    *('"', "'", "\\", "\n", "\r", "\t", "\0", "\x1b[2J", "\x85", "\u2028", "\ufeff", "\udcff"),
    *("\nservices: {x: {privileged: true}}\n", '", privileged: true, x: "', "]}", "- x"),
    *("{{.Node.ID}}", "{{", "}}", "{%", "{{ header }}", "{# #}", "#", " # x", ": x", "&a", "*a"),
    *("!!python/object:os.system", "<<", "---", "...", "%YAML", "../../etc", "/", "-x", "--x=y"),
    *("%0a", "%s", "null", "~", "yes", "1e9", "0x10", "\N{RIGHT-TO-LEFT OVERRIDE}", "a" * 300),
]
TEXTS = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=4), min_size=1, max_size=4).map(
    "".join
)
PROXY_LINES = 44
OWN = re.compile(r"\$\{KIT_SECRET_\w+:-by-hand\}")
LINE = re.compile(r"(inventory|(jobs|serve)/(first|second|third))\.yaml:\d+: ")

Way = tuple[str | int, ...]


def leaves(node: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Every value of a document with its way, and for a mapping its keys as values too."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, (*way, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from leaves(value, (*way, index))
    else:
        yield way, node


FIELDS = [(file, way) for file, content in FILES.items() for way, _ in leaves(content)]
KEYS = [
    ("inventory.yaml", ("hosts", "pc2")),
    ("inventory.yaml", ("network", "nccl", "NCCL_DEBUG")),
    ("jobs/first.yaml", ("environment", "MESSAGE")),
    ("jobs/first.yaml", ("secrets", "WANDB_API_KEY")),
    ("serve/first.yaml", ("environment", "GREETING")),
    ("serve/second.yaml", ("environment", "VLLM_LOGGING_LEVEL")),
    ("serve/second.yaml", ("secrets", "HF_TOKEN")),
]


def changed(node: Any, way: Way, change: Callable[[Any, str | int], Any]) -> Any:
    """A copy of a document in which the last step of a way is changed."""
    if len(way) == 1:
        return change(node, way[0])
    copy: Any = dict(node) if isinstance(node, dict) else list(node)
    copy[way[0]] = changed(node[way[0]], way[1:], change)
    return copy


def with_value(text: str) -> Callable[[Any, str | int], Any]:
    def change(node: Any, last: str | int) -> Any:
        copy: Any = dict(node) if isinstance(node, dict) else list(node)
        copy[last] = text
        return copy

    return change


def with_key(text: str) -> Callable[[Any, str | int], Any]:
    return lambda node, last: {text if key == last else key: one for key, one in node.items()}


def write(folder: Path, engine: str, file: str, content: Any) -> Project:
    for name, usual in FILES.items():
        path, whole = folder / name, content if name == file else usual
        path.parent.mkdir(exist_ok=True)
        if name == "inventory.yaml" and isinstance(whole, dict):
            whole = {"engine": engine, **whole}
        if engine == "compose" and isinstance(whole, dict):
            whole = {key: value for key, value in whole.items() if key != "proxy"}
        # In double quotes, so that YAML can carry any character.
        path.write_text(json.dumps(whole))
    return Project(folder)


def render(folder: Path, engine: str, file: str, content: Any) -> tuple[int, str, Path]:
    folder.mkdir()
    result = write(folder, engine, file, content).kit("render")
    return result.status, result.err, folder / "compose" / "lab"


def stacks(tree: Path) -> dict[str, Any]:
    """The rendered Compose and stack files, parsed."""
    files = (path for path in sorted(tree.rglob("*.yaml")) if "services:" in path.read_text())
    return {path.relative_to(tree).as_posix(): yaml.safe_load(path.read_text()) for path in files}


def keys(files: dict[str, Any]) -> set[str]:
    """The keys of files, of their services, and of what else they define, but no names."""
    found = set[str]()
    for document in files.values():
        found |= {key for key in document if not key.startswith("x-")}
        sections = ("services", "networks", "volumes", "configs", "secrets")
        entries = (one for each in sections for one in document.get(each, {}).values())
        found |= {f"  {key}" for entry in entries for key in entry or ()}
    return found


def inert(value: str) -> str:
    """A text as its container gets it: without the escapes of Compose and Swarm."""
    assert "$" not in OWN.sub("", value).replace("$$", ""), f"Docker would read {value!r}"
    value = value.replace("$$", "$").replace('{{"{{"}}', "{{")
    return "" if value == EMPTY else value


@pytest.fixture(scope="module", params=["swarm", "compose"])
def usual(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An engine, and the keys of its rendered files when every field is as it should be."""
    folder = tmp_path_factory.mktemp("usual") / "project"
    status, err, tree = render(folder, request.param, "", None)
    assert status == 0, err
    return request.param, keys(stacks(tree))


CASES = st.sampled_from([(False, *each) for each in FIELDS] + [(True, *each) for each in KEYS])
ODD = "$(id) ${HOME} {{.Node.ID}} '\" # : - ]}"


@settings(max_examples=100, deadline=None)
@given(case=CASES, text=TEXTS)
@example(case=(False, "jobs/first.yaml", ("mounts", 0, "bind")), text=f"/srv/{ODD}")
@example(case=(False, "jobs/first.yaml", ("environment", "MESSAGE")), text=f"{ODD}\nx: {{y}}")
@example(case=(False, "jobs/second.yaml", ("command", 1)), text=ODD)
@example(case=(False, "jobs/second.yaml", ("working_dir",)), text=f"/{ODD}")
@example(case=(False, "jobs/second.yaml", ("setup", 0)), text=f"echo {ODD}")
@example(case=(False, "jobs/second.yaml", ("checkpoint", "files", 0)), text=f"{ODD}.pt")
@example(case=(False, "serve/second.yaml", ("command", 1)), text=ODD)
@example(case=(False, "serve/second.yaml", ("command", 0)), text="\nservices: {x: {}}\n")
@example(case=(False, "serve/second.yaml", ("health",)), text="/'\"\\$(id){{.Node.ID}}")
@example(case=(False, "inventory.yaml", ("hosts", "pc1", "ssh")), text="me$(id)@pc1")
@example(case=(False, "inventory.yaml", ("hosts", "pc1", "gpus", 0, "model")), text=ODD)
@example(case=(False, "jobs/first.yaml", ("mounts", 2, "nfs")), text="nas.lab:/a$b`id`'\"#")
def test_hostile_text_is_refused_or_stays_data(
    usual: Any, tmp_path_factory: pytest.TempPathFactory, case: Any, text: str
) -> None:
    engine, known = usual
    is_key, file, way = case
    content = changed(FILES[file], way, (with_key if is_key else with_value)(text))
    folder = tmp_path_factory.mktemp("hostile") / "project"
    status, err, tree = render(folder, engine, file, content)
    if status:
        assert (status, (folder / "compose").exists()) == (2, False)
        assert LINE.match(err), err
        # A terminal must not obey what it shows.
        assert all(char.isprintable() or char == "\n" for char in err), err
        return
    files = stacks(tree)
    assert keys(files) <= known
    reached = [inert(value) for _, value in leaves(files) if isinstance(value, str)]
    if way[-1] in {"MESSAGE", "working_dir", "bind"} and not is_key:
        assert text in reached
    for path in tree.rglob("*.json"):
        json.loads(path.read_text())
    for path in tree.rglob("*.cfg"):
        # As many lines as usual, and the path is one word.
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        assert len(lines) == PROXY_LINES, path.read_text()
        (check_line,) = [line for line in lines if "http-check send" in line]
        assert shlex.split(check_line)[:5] == ["http-check", "send", "meth", "GET", "uri"]
        assert len(shlex.split(check_line)) == 6, check_line
    for path in tree.rglob("*.sh"):
        check = subprocess.run(["sh", "-n", str(path)], capture_output=True, check=False)
        assert (check.returncode, check.stderr) == (0, b""), path
        for line in path.read_text().splitlines():
            if any(each in line for each in ("touch /tmp/x", "`id`", "$(id)", "{{.Node.ID}}")):
                # Only as one quoted word, or behind a comment's sign.
                quoted = line.startswith("#") or any(text in word for word in shlex.split(line))
                assert quoted, line
    for path in tree.rglob("*.yaml"):
        if path.relative_to(tree).as_posix() in files:
            check_privileges(path)
