"""The folder with a job's code: what travels, its version, and what the rendered files say."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from kit.code import folder as code_folder
from kit.code.folder import list_code
from kit.code.pack import digest, packed
from kit.errors import InputError
from tests.sandbox import INVENTORY, Project

JOB = """\
image: pytorch/pytorch:2.7.0
command: [train.py]
code: {code}
"""
STORING = INVENTORY.replace("cluster: lab", 'cluster: lab\ndata: {image: "trainer:1"}').replace(
    "roles: [manager]", "roles: [manager, storage]"
)


@pytest.fixture
def research(tmp_path: Path) -> Path:
    return fill(tmp_path / "research", {"train.py": "print()", "lib/util.py": "X = 1"})


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def names(folder: Path, exclude: Sequence[str] = (), include: Sequence[str] = ()) -> list[str]:
    entries = list_code(folder, exclude, include).entries
    return [f"{each.name}/" if each.folder else each.name for each in entries]


def test_the_rules_of_git_and_docker_and_the_job_leave_files_out(research: Path) -> None:
    fill(
        research,
        {
            ".gitignore": "*.log\n!keep.log\n/data/\n",
            "lib/.gitignore": "*.bin\n!/a.log\n",
            ".dockerignore": "# comment\nbuild\n./docs/*\n!docs/read.md\n",
            **dict.fromkeys(("a.log", "keep.log", "lib/a.log", "lib/b.log", "lib/x.bin"), ""),
            **dict.fromkeys(("data/x", "lib/data/x", "build/x", "lib/build/x"), ""),
            **dict.fromkeys(("docs/a", "docs/read.md", "runs/x", "notes.txt"), ""),
        },
    )
    assert names(research, ["runs/", "*.txt"]) == [
        *(".dockerignore", ".gitignore", "docs/read.md", "keep.log", "lib/.gitignore"),
        *("lib/a.log", "lib/build/x", "lib/data/x", "lib/util.py", "train.py"),
    ]
    assert "data/x" in names(research, [], ["data"])


def test_git_agrees_about_its_files(research: Path) -> None:
    """Git itself says what it would take, also by rules above the folder and in .git/info."""
    fill(
        research,
        {
            ".gitignore": "*.tmp\n!important.tmp\nout*/\n\\#x\n*.[oa]\n!lib/*.a\n",
            "lib/.gitignore": "/only\n**/deep\n",
            "lib/sub/.gitignore": "!deep\n",
            **dict.fromkeys(("a.tmp", "important.tmp", "output/x", "#x", "m.o", "lib/m.a"), "1"),
            **dict.fromkeys(("lib/only", "lib/sub/only", "lib/sub/deep", "lib/deep/x"), "1"),
            **dict.fromkeys(("private/x", "lib/private"), "1"),
        },
    )
    git = ("git", "-C", str(research))
    subprocess.run((*git, "init", "-q"), check=True)
    fill(research, {".git/info/exclude": "private\n"})
    for below in (".", "lib"):
        listed = subprocess.run(
            (*git, "ls-files", "-zco", "--exclude-standard", below), capture_output=True, check=True
        )
        wanted = {Path(os.fsdecode(each)) for each in listed.stdout.split(b"\0") if each}
        found = {Path(below, each) for each in names(research / below)}
        assert found == wanted


def test_what_cannot_travel_is_told_and_secrets_stay(research: Path) -> None:
    fill(research, dict.fromkeys((".env", ".env.example", "keys/id_rsa", "server.pem"), "x"))
    fill(research, {"venv/pyvenv.cfg": "", "venv/bin/python": "", "lib/__pycache__/x.pyc": ""})
    (research / "weights").symlink_to("/srv/weights")
    (research / "up").symlink_to("../elsewhere")
    (research / "main.py").symlink_to("train.py")
    (research / "empty").mkdir()
    os.mkfifo(research / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(research / "sock"))
    listing = list_code(research)
    assert listing.secrets == [".env", "keys/id_rsa", "server.pem"]
    assert listing.left_out == [
        "pipe (no plain file)",
        "sock (no plain file)",
        "up (a link to ../elsewhere, outside the folder)",
        "weights (a link to /srv/weights, outside the folder)",
    ]
    assert names(research) == [
        ".env.example",
        "empty/",
        "keys/",
        "lib/util.py",
        "main.py",
        "train.py",
    ]
    assert ".env" in names(research, [], [".env"])


def test_the_archive_depends_on_contents_modes_and_names_alone(research: Path) -> None:
    odd = research / os.fsdecode(b"odd \xff\n\xc3\xa4")
    odd.write_text("odd")
    (research / "run.sh").write_text("true")
    (research / "run.sh").chmod(0o755)
    (research / "link").symlink_to("lib/util.py")
    version = digest(list_code(research).entries)
    blocks = b"".join(packed(list_code(research).entries, version, research))
    with tarfile.open(fileobj=io.BytesIO(blocks)) as archive:
        members = {each.name: each for each in archive.getmembers()}
    assert set(members) == {odd.name, "run.sh", "link", "lib/util.py", "train.py"}
    assert (members["run.sh"].mode, members["train.py"].mode) == (0o755, 0o644)
    assert {(each.mtime, each.uid, each.uname) for each in members.values()} == {(0, 0, "")}
    os.utime(research / "train.py", (1, 1))
    (research / "train.py").chmod(0o600)
    assert digest(list_code(research).entries) == version
    (research / "train.py").chmod(0o700)
    assert digest(list_code(research).entries) != version
    with pytest.raises(InputError, match="has changed since `kit render`"):
        list(packed(list_code(research).entries, version, research))


def test_a_folder_with_too_much_names_the_largest(
    research: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(research, {"data/train.bin": "x" * 3000, "lib/big.py": "x" * 2000})
    monkeypatch.setattr(code_folder, "LARGEST", 4000)
    with pytest.raises(InputError) as error:
        list_code(research)
    assert "data/ has 3 kB, lib/ has 2 kB, train.py has 7 B" in str(error.value)
    assert "`code: {exclude: [data/]}`" in str(error.value)
    assert list_code(research, ["data/"]).size < 4000
    monkeypatch.setattr(code_folder, "MOST", 2)
    with pytest.raises(InputError, match="has more than 2 files"):
        list_code(research, ["data/"])


def test_the_rendered_files_name_the_version(project: Project) -> None:
    research = fill(project.folder / "research", {"train.py": "print()", ".env": "x"})
    tree = project.write(STORING, {"ddp": JOB.format(code="research")}).rendered()
    job = json.loads((tree / "jobs" / "ddp.json").read_text())
    version = job["code"]["sha256"]
    assert version == digest(list_code(research).entries)
    stack = (tree / "train-ddp.stack.yaml").read_text()
    assert f"code-{version[:12]}" in stack
    # What stays here is told, and is no part of the files: another machine has other secrets.
    assert ".env may hold secrets" in project.kit("plan").out
    (research / ".env").unlink()
    assert project.kit("render", "--check").status == 0
    before = project.lowered().workloads[0].job_hash
    fill(research, {"train.py": "print(1)"})
    assert project.lowered().workloads[0].job_hash != before
    assert project.kit("render", "--check").status == 1


def test_a_repository_of_the_cluster_is_code_without_kits_files(project: Project) -> None:
    """A render, a split and another job must not change the version of a job."""
    project.write(STORING, {"ddp": JOB.format(code=".")})
    fill(project.folder, {"train.py": "print()", "jobs/model.py": "X = 1"})
    project.rendered()
    package = project.plan().jobs[0].job.package
    assert package is not None
    assert package.files == 2
    assert project.kit("render", "--check").status == 0


def test_what_the_command_prints_is_no_code(project: Project) -> None:
    """`kit run … > out.log` in the folder: the file grows with each line."""
    fill(project.folder / "research", {"train.py": "print()"})
    project.write(STORING, {"ddp": JOB.format(code="research")}).rendered()
    words = [sys.executable, "-m", "kit", "render", "--check"]
    with (project.folder / "research" / "out.log").open("w") as log:
        log.write("a line before\n")
        done = subprocess.run(words, cwd=project.folder, stdout=log, check=False)
    assert done.returncode == 0


def test_other_jobs_need_no_folder(project: Project) -> None:
    """Who deploys another job, or splits GPUs, has the version of the rendered files."""
    research = fill(project.folder / "research", {"train.py": "print()"})
    project.write(STORING, {"ddp": JOB.format(code="research")}).rendered()
    research.rename(research.with_name("elsewhere"))
    assert project.kit("render", "--check").status == 0
    shown = project.kit("plan").out
    assert "of research, as rendered: the folder is not on this machine" in shown
    assert "there is no research here: the version is that of the rendered files" in shown
    # A folder that was never there is a mistake.
    project.write(STORING, {"ddp": JOB.format(code="reserch")})
    assert "there is no such folder" in project.kit("plan").err


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("command: [a.py]\ncode: ../none", "3: code: {}/none: there is no such folder; name the"),
        ("command: [a.py]\ncode: [a]", "3: code: is not a folder; write `code: .`"),
        (
            "command: [a.py]\ncode: {folder: ., include: [/etc/passwd]}",
            "3: code.include[0]: '/etc/passwd' is not a path in the folder; write for example",
        ),
        (
            "command: [a.py]\ncode: {folder: ., include: [nothing]}",
            "3: code: {}/nothing: there is no such file; correct `include`",
        ),
        (
            "command: [a.py]\ncode: .\nmounts: [{bind: /srv, to: /workspace/data}]",
            "4: mounts[0].to: /workspace holds the folder of `code:`; choose another folder",
        ),
        (
            "command: [a.py]\ncode: .\nworking_dir: /srv",
            "4: working_dir: the folder of `code:` is /workspace; write a folder in it",
        ),
        (
            "command: [a.py]\ndata: [code-x]",
            "3: data[0]: names with code- are those of code; write `code: FOLDER`",
        ),
    ],
)
def test_mistakes(project: Project, job: str, said: str) -> None:
    project.write(INVENTORY, {"ddp": f"image: pytorch/pytorch:2.7.0\n{job}\n"})
    result = project.kit("plan")
    assert result.status == 2
    folder = project.folder.parent if "none:" in said else project.folder
    assert f"jobs/ddp.yaml:{said.format(folder)}" in result.err


def test_code_needs_the_data_services(project: Project) -> None:
    project.write(INVENTORY, {"ddp": JOB.format(code=".")})
    fill(project.folder, {"train.py": ""})
    assert "write `data: {image: …}` in the inventory" in project.kit("plan").err
