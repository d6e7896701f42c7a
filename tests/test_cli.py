"""The command line: help, exit statuses, output streams, a user's own project."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click
import jsonschema
import pytest
import yaml

from kit import __version__
from kit.cli import COMMANDS, cli
from tests.sandbox import (
    COMMAND,
    DEADLINE,
    INVENTORY,
    JOB,
    ROOT,
    SERVER,
    Project,
    kit,
    kit_process,
    snapshot,
)


def command_of(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_a_help_text(name: str) -> None:
    command = command_of(name)
    assert command.help
    assert command.help.strip().splitlines()[0].endswith(".")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert parameter.help.split("  ")[0].endswith("."), parameter.name


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_lists_the_commands(tmp_path: Path, arguments: list[str]) -> None:
    result = kit(tmp_path, *arguments)
    assert (result.status, result.err) == (0, "")
    for name in COMMANDS:
        assert f"  {name} " in result.out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_helps(tmp_path: Path, name: str) -> None:
    result = kit(tmp_path, name, "-h")
    assert (result.status, result.err) == (0, "")
    assert re.match(rf"Usage: .*\bkit {name} ", result.out)


def test_the_version(tmp_path: Path) -> None:
    result = kit(tmp_path, "--version")
    assert (result.status, result.out) == (0, f"kit, version {__version__}\n")


SLIPS = [
    ([], "Usage: "),
    (["frobnicate"], "No such command 'frobnicate'"),
    (["render", "--frobnicate"], "No such option"),
    (["render", "extra"], "unexpected extra argument (extra)"),
    (["schema"], "Missing argument"),
    (["schema", "host"], "'host' is not one of 'inventory', 'job', 'server'"),
    (["init"], "Missing argument 'FOLDER'"),
]


@pytest.mark.parametrize(("arguments", "message"), SLIPS)
def test_a_slip_on_the_command_line_is_a_mistake_in_the_input(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = kit(tmp_path, *arguments)
    assert (result.status, result.out) == (2, "")
    assert message in result.err


def test_statuses_of_a_process(project: Project) -> None:
    project.write()
    assert kit_process(project.folder, "render").status == 0
    (project.folder / "compose" / "lab" / "plan.json").write_text("{}\n")
    assert kit_process(project.folder, "render", "--check").status == 1
    project.write("cluster: Lab\n")
    result = kit_process(project.folder, "render", "--check")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("inventory.yaml:1: cluster: ")


SCHEMAS = ["inventory", "job", "server"]


@pytest.mark.parametrize("what", SCHEMAS)
def test_the_committed_schema_is_the_present_one(what: str) -> None:
    result = kit(ROOT, "schema", what)
    assert (result.status, result.err) == (0, "")
    assert result.out == (ROOT / "kit" / "schema" / f"{what}.schema.json").read_text()


FILES = [
    path.relative_to(ROOT)
    for folder in (ROOT, ROOT / "templates" / "init", *sorted((ROOT / "tests/examples").iterdir()))
    for path in (
        folder / "inventory.yaml",
        *sorted(folder.glob("jobs/*.yaml")),
        *folder.glob("serve/*.yaml"),
    )
]
KINDS = {"jobs": "job", "serve": "server"}


def schema_of(what: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "kit" / "schema" / f"{what}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_examples_satisfy_the_schema(path: Path) -> None:
    what = KINDS.get(path.parent.name, "inventory")
    document = yaml.safe_load((ROOT / path).read_text())
    assert [error.message for error in schema_of(what).iter_errors(document)] == []


REFUSED = [
    ("inventory", INVENTORY, "cluster: lab", "cluster: Lab"),
    ("inventory", INVENTORY, "engine: swarm", "engin: swarm"),
    ("inventory", INVENTORY, "24GiB", "24GB"),
    ("inventory", INVENTORY, "uuid: GPU-b", "uuid: 0"),
    ("inventory", INVENTORY, "uuid: GPU-b", "uuid: GPU-b, index: 0"),
    ("inventory", INVENTORY.replace("uuid: GPU-b", "index: 0"), "index: 0", "index: 64"),
    ("job", JOB, "image: registry.lab:5000/trainer:0.2.0\n", ""),
    ("job", JOB, "epochs: 10", "epochs: 0"),
    ("job", JOB, "model: cnn", "model: vgg"),
    ("server", SERVER, "job: digits", "jobs: digits"),
    ("server", SERVER + "port: 80\n", "port: 80", "port: 70000"),
    ("server", SERVER + "checkpoint: best\n", "best", "latest"),
    ("server", SERVER + "token: {env: TOKEN}\n", "{env: TOKEN}", "hush"),
]


@pytest.mark.parametrize(("what", "text", "old", "new"), REFUSED)
def test_the_schema_refuses_what_kit_refuses(what: str, text: str, old: str, new: str) -> None:
    schema = schema_of(what)
    assert schema.is_valid(yaml.safe_load(text))
    assert not schema.is_valid(yaml.safe_load(text.replace(old, new)))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_examples_name_their_schema(path: Path) -> None:
    comment = next(
        line for line in (ROOT / path).read_text().splitlines() if "yaml-language-server" in line
    )
    named = (ROOT / path).parent / comment.split("$schema=")[1]
    if "init" in path.parts:  # kit init puts it there
        assert named.name in {f"{what}.schema.json" for what in SCHEMAS}
    else:
        assert named.resolve().is_file()


def test_a_project_of_ones_own(tmp_path: Path) -> None:
    result = kit(tmp_path, "init", "my-cluster")
    assert (result.status, result.err) == (0, "")
    folder = tmp_path / "my-cluster"
    for path, what in (
        (folder / "inventory.yaml", "inventory"),
        (folder / "jobs/digits.yaml", "job"),
    ):
        comment = next(line for line in path.read_text().splitlines() if "$schema=" in line)
        schema = path.parent / comment.split("$schema=")[1]
        assert schema.read_text() == kit(tmp_path, "schema", what).out
    assert kit(folder, "plan").status == 0
    assert kit(folder, "render", "--check").status == 1
    assert kit(folder, "render").status == 0
    assert kit(folder, "render", "--check").status == 0


def test_a_new_project_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "digits.yaml").write_text("mine\n")
    (tmp_path / "Makefile").write_text("mine\n")
    before = snapshot(tmp_path)
    result = kit(tmp_path, "init", ".")
    assert (result.status, result.out) == (2, "")
    assert result.err.splitlines()[0] == "kit: . holds Makefile, jobs/digits.yaml already"
    assert snapshot(tmp_path) == before


def test_a_new_project_beside_other_files(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine\n")
    assert kit(tmp_path, "init", ".").status == 0
    assert (tmp_path / "README.md").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("more", "status", "told"),
    [
        (["--hosts", "a b"], 2, "a b"),
        (["--hosts", ""], 2, ""),
        (["--hosts", "nobody@127.0.0.1:1"], 1, "nobody@127.0.0.1:1: cannot be reached"),
        (["--image", "A:B:C"], 2, "write for example registry.lab:5000/trainer:0.2.0"),
    ],
)
def test_a_project_of_hosts_that_are_not_there(
    tmp_path: Path, more: list[str], status: int, told: str
) -> None:
    result = kit(tmp_path, "init", "pool", *more)
    assert result.status == status
    assert told in result.err
    assert not (tmp_path / "pool").exists()


def test_a_project_with_an_image(tmp_path: Path) -> None:
    assert kit(tmp_path, "init", "pool", "--image", "ghcr.io/us/trainer:2").status == 0
    assert "\nimage: ghcr.io/us/trainer:2\n" in (tmp_path / "pool/jobs/digits.yaml").read_text()


def test_a_file_is_no_folder_for_a_project(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine\n")
    result = kit(tmp_path, "init", "file")
    assert result.status == 2
    assert result.err.startswith("kit: file")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not there")
def test_the_makefile_of_a_project_works(tmp_path: Path) -> None:
    assert kit(tmp_path, "init", ".").status == 0
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "kit").write_text(f'#!/bin/sh\nexec {sys.executable} -m kit "$@"\n')
    (binaries / "kit").chmod(0o755)
    # As from a shell of its own: these tests are run by make themselves.
    outer = {"MAKELEVEL", "MAKEFLAGS", "MFLAGS"}
    env = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(
        ["make", "plan", "render", "check"],
        cwd=tmp_path,
        env={**env, "PATH": f"{binaries}:{env['PATH']}"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "compose" / "my-cluster" / "train-digits.stack.yaml").is_file()
    listed = subprocess.run(
        ["make"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    ).stdout
    assert [line.split()[0] for line in listed.splitlines()] == [
        "help",
        "plan",
        "render",
        "check",
        "deploy",
    ]


@pytest.mark.parametrize("command", ["plan", "plan --json", "render --check", "--help"])
def test_a_reader_that_leaves_is_no_failure_to_speak_of(project: Project, command: str) -> None:
    inventory = (
        "cluster: lab\nengine: swarm\nhosts:\n  m: {address: 10.1.0.1, roles: [manager]}\n"
        '  "gpu[1-900]": {address: 10.0.0.1-10.0.3.132, gpus: 8}\n'
    )
    project.write(inventory)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kit", *command.split()],
            cwd=project.folder,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", ["plan", "plan --json", "render --diff"])
def test_a_terminal_without_unicode_is_no_failure(
    project: Project, encoding: str, command: str
) -> None:
    inventory = INVENTORY.replace(", use: inference", "")
    project.write(inventory, {"a": COMMAND + "environment: {X: 漢}\n"})
    result = subprocess.run(
        [sys.executable, "-m", "kit", *command.split()],
        cwd=project.folder,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout


@pytest.mark.parametrize("command", ["plan", "plan --json", "split", "render --diff", "--help"])
def test_a_full_disk_behind_the_output_is_told(project: Project, command: str) -> None:
    project.write()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kit", *command.split()],
            cwd=project.folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "kit: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("raised", ["KeyError('n3')", "SystemExit(0)", "MemoryError()"])
def test_what_nobody_foresaw_is_no_traceback(project: Project, raised: str) -> None:
    project.write()
    program = (
        "import sys; from unittest import mock; from kit.__main__ import main\n"
        f"sys.argv = ['kit', 'plan']\n"
        f"with mock.patch('kit.commands.plan.load_project', side_effect={raised}): main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=project.folder,
        env={**os.environ, "TMPDIR": str(project.folder)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    first, second = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (3, "")
    assert first.startswith(f"kit: internal error: {raised.partition('(')[0]}: ")
    assert "report it to kit's maintainers, with " in second
    report = Path(second.rpartition(" ")[2]).read_text()
    assert "Traceback (most recent call last):" in report


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_imports_is_no_traceback(
    project: Project, number: signal.Signals
) -> None:
    program = (
        "import os, signal, sys; from kit.__main__ import main\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"  # a shell's background job ignores it
        "def hook(event, arguments):\n"
        "    if event == 'import' and arguments[0] == 'kit.config.load':\n"
        f"        os.kill(os.getpid(), {number.value})\n"
        "sys.addaudithook(hook); sys.argv = ['kit', 'plan']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=project.write().folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "kit: interrupted\n")


INTERRUPTED = """
import os, signal, sys
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock
import click
from kit.__main__ import main
from kit.commands.to_the_end import follow_to_end
from kit.errors import KitError

@contextmanager
def locked():
    try:
        yield
    finally:
        raise KitError("n1: Docker cannot be reached", "try `docker info`")

def in_cleanup(*_):
    with locked():
        os.kill(os.getpid(), signal.{name})

def in_question(*_):
    send = lambda *_: os.kill(os.getpid(), signal.{name})
    with mock.patch("click.termui.visible_prompt_func", send):
        click.confirm("change n1?", abort=True)

def followed(*_):
    def logs(*_, follow):
        os.kill(os.getpid(), signal.{name})
        yield
    sys.exit(follow_to_end(SimpleNamespace(tied_to_terminal=False, logs=logs), ["digits"]))

signal.signal(signal.SIGINT, signal.SIG_DFL)  # A shell's background job ignores it.
sys.argv = ["kit", "plan"]
with mock.patch("kit.commands.plan.load_project", side_effect={what}):
    main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("in_cleanup", "kit: n1: Docker cannot be reached"),
        ("in_question", "kit: interrupted"),
        ("followed", "digits continues without this terminal"),
    ],
)
def test_an_interrupted_command_ends_with_the_number_of_the_signal(
    project: Project, name: str, what: str, words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.replace("{name}", name).replace("{what}", what)],
        cwd=project.write().folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 128 + signal.Signals[name]
    assert words in done.stderr
    assert "internal error" not in done.stderr


def many_hosts(number: int) -> str:
    """An inventory whose hosts differ by turns, so that no neighbours are equal."""
    lines = ["cluster: lab", "engine: swarm", "hosts:"]
    for n in range(number):
        use = ", use: inference" if n % 2 else ""
        lines += [
            f"  n{n:03}:",
            f"    address: 10.0.{n // 200}.{n % 200 + 1}",
            f"    roles: [{'' if n else 'manager'}]",
            f"    gpus: [{{uuid: GPU-{n}a, model: H100}}, {{uuid: GPU-{n}b, model: H100{use}}}]",
        ]
    return "\n".join([*lines, "network: {subnet: 172.16.0.0/16}", ""])


def test_equal_hosts_of_a_large_cluster_share_a_row(project: Project) -> None:
    project.write(many_hosts(120))
    few, every = project.kit("plan").out, project.kit("plan", "--all").out
    assert len(few.splitlines()) < 40
    rows = [line.split() for line in few.splitlines() if line.startswith(" n")]
    assert [row[:4] for row in rows[-2:]] == [
        ["n000", "…", "n118", "(60)"],
        ["n001", "…", "n119", "(60)"],
    ]
    assert "1 of 2" in few
    for n in range(120):
        assert every.count(f" n{n:03} ") == 2  # of the hosts, and of the job's
    document = json.loads(project.kit("plan", "--json").out)
    assert len(document["hosts"]) == len(document["jobs"][0]["hosts"]) == 120


def test_equal_gpus_of_a_large_cluster_share_a_row(project: Project) -> None:
    project.write(many_hosts(120))
    few, every = project.kit("split").out, project.kit("split", "--all").out
    assert [line.split()[:7] for line in few.splitlines() if line.startswith(" n")] == [
        ["n000", "…", "n119", "(120)", "180", "in", "all"],
        ["n001", "…", "n119", "(60)", "60", "in", "all"],
    ]
    assert sum(line.startswith(" n") for line in every.splitlines()) == 240
    assert len(json.loads(project.kit("split", "--json").out)["gpus"]) == 240
