"""The code of a job: stored once, verified, and unpacked to the folder in which the job runs."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from kit.code.folder import list_code
from kit.code.pack import blocks
from tests.sandbox import DEADLINE, ROOT
from trainer.contract.code import ARCHIVE
from trainer.datasets.code import KEPT, superseded
from trainer.datasets.layout import find_places
from trainer.datasets.sources.local import UPLOADS
from trainer.launcher.errors import LaunchError
from trainer.launcher.settings import Job, Settings
from trainer.launcher.workspace import enter_workspace, unpack

VARIABLES = {"KIT_JOB": "/kit/job.json", "KIT_RENDEZVOUS": "pc1:29400", "KIT_NPROC": "1"}


def pack(tmp_path: Path, folder: Path) -> tuple[str, dict[str, str]]:
    """Pack a folder as the data agent has it; return its version and the paths of data sets."""
    made = tmp_path / "fetched"
    made.mkdir(exist_ok=True)
    archive = b"".join(blocks(list_code(folder).entries))
    (made / ARCHIVE).write_bytes(archive)
    version = hashlib.sha256(archive).hexdigest()
    return version, {f"code-{version[:12]}": str(made)}


def settings(workspace: Path) -> Settings:
    return Settings({**VARIABLES, "KIT_WORKSPACE": str(workspace)})


@pytest.fixture
def research(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "research"
    (folder / "lib" / "empty").mkdir(parents=True)
    (folder / "train.py").write_text("first")
    (folder / "run.sh").write_text("true")
    (folder / "run.sh").chmod(0o755)
    (folder / "lib" / "link.py").symlink_to("../train.py")
    (folder / os.fsdecode(b"odd \xff\n")).write_text("odd")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KIT_CODE", "")
    return folder


def test_a_container_runs_in_the_unpacked_folder_and_keeps_what_it_writes(
    research: Path, tmp_path: Path
) -> None:
    version, folders = pack(tmp_path, research)
    job = Job("own", ("train.py",), code=version, working_dir="/workspace/lib")
    enter_workspace(settings(tmp_path / "workspace"), job, folders)
    workspace = tmp_path / "workspace"
    assert Path.cwd() == workspace / "lib"
    assert Path(os.environ["KIT_CODE"]).parent == workspace
    assert {
        each.relative_to(workspace) for each in workspace.rglob("*") if each.name != ".kit-code"
    } == {each.relative_to(research) for each in research.rglob("*")}
    assert (workspace / "lib" / "link.py").readlink() == Path("../train.py")
    assert os.access(workspace / "run.sh", os.X_OK)
    # Another start of the same container: the script's own changes are still there.
    (workspace / "train.py").write_text("changed by itself")
    enter_workspace(settings(workspace), job, {})
    assert (workspace / "train.py").read_text() == "changed by itself"


def test_a_start_that_was_cut_short_unpacks_again(research: Path, tmp_path: Path) -> None:
    version, folders = pack(tmp_path, research)
    workspace = tmp_path / "workspace"
    unpack(Path(folders[f"code-{version[:12]}"], ARCHIVE), workspace)
    (workspace / "train.py").write_text("fir")
    enter_workspace(settings(workspace), Job("own", ("train.py",), code=version), folders)
    assert (workspace / "train.py").read_text() == "first"


def test_another_archive_is_refused(research: Path, tmp_path: Path) -> None:
    version, folders = pack(tmp_path, research)
    with Path(folders[f"code-{version[:12]}"], ARCHIVE).open("r+b") as file:
        file.seek(600)
        file.write(b"x")
    with pytest.raises(LaunchError, match="is not the code that the job names"):
        enter_workspace(settings(tmp_path / "w"), Job("own", ("train.py",), code=version), folders)
    assert not [each for each in (tmp_path / "w").iterdir() if each.name != ".kit-code"]


@pytest.mark.parametrize("name", ["../outside", "/outside", "out/inner"])
def test_no_member_leaves_the_folder(name: str, tmp_path: Path) -> None:
    """Its SHA-256 is the job's, but a job's file may come from anybody."""
    archive = tmp_path / ARCHIVE
    with tarfile.open(archive, "w") as made:
        link = tarfile.TarInfo("out")
        link.type, link.linkname = tarfile.SYMTYPE, ".."
        made.addfile(link)
        member = tarfile.TarInfo(name)
        member.size = 1
        made.addfile(member, io.BytesIO(b"x"))
    (tmp_path / "workspace").mkdir()
    with pytest.raises(LaunchError, match="is outside of its folder"):
        unpack(archive, tmp_path / "workspace")
    assert sorted(each.name for each in tmp_path.iterdir()) == [ARCHIVE, "workspace"]


def test_a_user_who_may_not_write_there_gets_another_folder(
    research: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    version, folders = pack(tmp_path, research)
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    job = Job("own", ("train.py",), code=version)
    enter_workspace(settings(tmp_path / "file" / "workspace"), job, folders)
    assert Path.cwd() == tmp_path / "tmp" / f"workspace-{os.getuid()}"
    assert "this user cannot write to" in capsys.readouterr().out


def name_of(content: bytes) -> str:
    return f"code-{hashlib.sha256(content).hexdigest()[:12]}"


def put(store: Path, name: str, content: bytes) -> subprocess.Popen[bytes]:
    words = ("-m", "trainer.datasets.store", "--store", str(store), "put", name, "--json")
    process = subprocess.Popen(
        [sys.executable, *words, "--described", "research"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(content)
        process.stdin.flush()
    return process


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=DEADLINE)
    return process.returncode, output.decode()


def test_code_is_stored_once_and_comes_again_after_its_removal(tmp_path: Path) -> None:
    name = name_of(b"archive")
    assert '"state": "send"' in ended(put(tmp_path, name, b"archive"))[1]
    stored = tmp_path / name / "1" / "data" / ARCHIVE
    assert stored.read_bytes() == b"archive"
    assert '"state": "send"' not in ended(put(tmp_path, name, b""))[1]
    remove = ("-m", "trainer.datasets.store", "--store", str(tmp_path), "rm", f"{name}@1")
    subprocess.run([sys.executable, *remove], check=True, cwd=ROOT)
    assert ended(put(tmp_path, name, b"archive"))[0] == 0
    assert stored.read_bytes() == b"archive"
    assert list((tmp_path / UPLOADS).glob("code-*.*")) == []


def test_a_lost_connection_stores_nothing(tmp_path: Path) -> None:
    name = name_of(b"the whole archive")
    status, said = ended(put(tmp_path, name, b"the whole"))
    assert (status, f"what has arrived is not {name}: the connection was lost" in said) == (1, True)
    assert not (tmp_path / name).exists()
    assert list((tmp_path / UPLOADS).glob("code-*.*")) == []


def test_two_people_send_the_same_code_at_once(tmp_path: Path) -> None:
    name = name_of(b"archive")
    sending = [put(tmp_path, name, b"arch") for _ in range(2)]
    for each in sending:
        assert each.stdin is not None
        each.stdin.write(b"ive")
    assert [ended(each)[0] for each in sending] == [0, 0]
    assert (tmp_path / name / "1" / "data" / ARCHIVE).read_bytes() == b"archive"


def test_the_oldest_code_goes_unless_a_job_needs_it(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        mark = tmp_path / f"code-{number:02}" / "1" / "COMPLETE"
        mark.parent.mkdir(parents=True)
        mark.touch()
        os.utime(mark, (number, number))
    data = tmp_path / "cifar10" / "1"
    data.mkdir(parents=True)
    (data / "COMPLETE").touch()
    assert len(find_places(tmp_path)) == KEPT + 4
    assert {each.name for each in superseded(tmp_path, {"code-01"})} == {"code-00", "code-02"}
