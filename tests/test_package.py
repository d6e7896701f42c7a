"""The packages that a release has: kit works from its wheel, without a clone of the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from kit import __version__
from tests.pages import page
from tests.sandbox import ROOT

OWN = ("kit/", "trainer/")


def run(*command: str | Path, cwd: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**environ, "XDG_STATE_HOME": str(cwd / "state")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build(source: Path, target: Path, *kinds: str) -> list[Path]:
    words = [word for kind in kinds for word in ("-t", kind)]
    run(sys.executable, "-m", "hatchling", "build", "-d", target, *words, cwd=source)
    return sorted(target.iterdir())


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    wheel, sdist = sorted(
        build(ROOT, tmp_path_factory.mktemp("dist"), "wheel", "sdist"), key=lambda path: path.suffix
    )[::-1]
    return wheel, sdist


def own_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.startswith(OWN)}


def tell_the_story(kit: Path, folder: Path) -> None:
    """Start a repository, plan and render it, by a program that is no part of a clone."""
    assert run(kit, "--version", cwd=folder) == f"kit, version {__version__}\n"
    assert "next:" in run(kit, "init", "pool", cwd=folder)
    project = folder / "pool"
    assert "job digits" in run(kit, "plan", cwd=project)
    run(kit, "render", cwd=project)
    run(kit, "render", "--check", cwd=project)
    assert list((project / "compose").rglob("jobs/digits.json"))
    assert '"$schema"' in run(kit, "schema", "job", cwd=project)


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads(page("pyproject.toml"))["project"]
    newest = re.search(r"^## \[(\d[^\]]*)\] - \d{4}-\d\d-\d\d$", page("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert project["version"] == newest[1] == __version__
    assert f"/trainer:{__version__}\n" in page("templates/init/jobs/digits.yaml")
    assert f'/kit@v{__version__}"' in page("templates/init/.github/workflows/check.yaml")


def test_the_wheel_works_without_a_clone(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """Offline: the libraries are those of this environment, kit is that of the wheel."""
    run(sys.executable, "-m", "venv", "--without-pip", "clean", cwd=tmp_path)
    python = tmp_path / "clean" / "bin" / "python"
    uv = Path(sys.executable).parent / "uv"
    run(
        uv,
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--python",
        python,
        packages[0],
        cwd=tmp_path,
    )
    (site,) = (tmp_path / "clean" / "lib").glob("python*/site-packages")
    # Libraries only: a path in a .pth file has no .pth files of its own, such as that of the clone.
    (site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    where = run(python, "-c", "import kit, trainer; print(kit.__file__, trainer)", cwd=tmp_path)
    assert where.count(str(site)) == 2
    tell_the_story(tmp_path / "clean" / "bin" / "kit", tmp_path)


def test_the_sdist_builds_the_same_wheel(packages: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = packages
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    (other,) = build(source, tmp_path / "dist", "wheel")
    assert own_files(other) == own_files(wheel)
    assert "kit/templates/init/inventory.yaml" in own_files(wheel)


@pytest.mark.long
@pytest.mark.parametrize("program", ["pip", "pipx"])
def test_the_wheel_installs_from_pypi(
    program: str, packages: tuple[Path, Path], tmp_path: Path
) -> None:
    """With its libraries, in an environment that has nothing else."""
    run(sys.executable, "-m", "venv", "clean", cwd=tmp_path)
    programs = tmp_path / "clean" / "bin"
    if program == "pipx":
        run(programs / "pip", "install", "--quiet", "pipx", cwd=tmp_path)
        home = {"PIPX_HOME": tmp_path / "pipx", "PIPX_BIN_DIR": tmp_path / "bin"}
        words = [f"{name}={path}" for name, path in home.items()]
        run("env", *words, programs / "pipx", "install", packages[0], cwd=tmp_path)
        programs = tmp_path / "bin"
    else:
        run(programs / "pip", "install", "--quiet", packages[0], cwd=tmp_path)
    tell_the_story(programs / "kit", tmp_path)
