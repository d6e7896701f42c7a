"""Images without a public registry: made from Debian packages."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tests.lab.host import Engine, run
from tests.lab.settings import BASE, HERE, IMAGE, PROJECT, STAND_IN, LabError, Settings

NODE = [
    *("apt", "ca-certificates", "curl", "docker.io", "docker-cli", "docker-compose"),
    *("docker-registry", "iproute2", "iptables", "jq", "mount", "nftables", "openssh-server"),
    *("procps", "python3", "sudo", "tzdata"),
]
PYTHON = ["libstdc++6", "openssh-server", "python3"]  # PyTorch's wheels bring all else
PACE = HERE / "pace" / "lab_pace.py"
IMPORTS = ("torch", "torch.distributed.run", "sklearn.datasets", "fastapi_offline", "uvicorn")
"""Modules that trainings and servers import, if they are installed."""
COMPILE = """\
import contextlib, importlib, sys
sys.dont_write_bytecode = False
for name in sys.argv[1:]:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
"""


def root_file_system(settings: Settings, name: str, suite: str, packages: list[str]) -> Path:
    """Return a tar of Debian with these packages; it is made once."""
    recipe = hashlib.sha256(f"{suite} {packages}".encode()).hexdigest()[:12]
    made = settings.cache / f"{name}-{recipe}.tar"
    if made.exists():
        return made
    settings.cache.mkdir(parents=True, exist_ok=True)
    print(f"unpacking Debian's packages for {name} (once, a minute or so)", flush=True)
    mirror = settings.mirror or debian_mirror()
    unfinished = made.with_suffix(".part")
    run(
        *("mmdebstrap", "--quiet", "--format=tar", "--variant=essential"),
        f"--include={','.join(packages)}",
        "--dpkgopt=force-unsafe-io",
        # A mirror may be a snapshot, whose lists have expired.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        *(f"--dpkgopt=path-exclude=/usr/share/{what}/*" for what in ("man", "doc", "locale")),
        *(suite, str(unfinished), *([mirror] if mirror else [])),
    )
    unfinished.rename(made)
    return made


def node_image(settings: Settings, engine: Engine) -> str:
    """Return the name of the nodes' image."""
    tar = root_file_system(settings, "node", settings.suite, NODE)
    image = f"kit-lab-node:{tar.stem.rpartition('-')[2]}"
    if not engine.docker("image", "ls", "-q", image):
        engine.docker("import", tar, image)
    return image


def trainer_image(settings: Settings, engine: Engine, node: str) -> None:
    """Put the trainer's image, its base and the stand-in into the registry and into a node.

    The registry's files are cached by what the images are made of: other labs copy them.
    """
    suite = debian_suite(ask_python(settings, "'%d.%d' % sys.version_info[:2]"))
    tar = root_file_system(settings, "python", suite, PYTHON)
    own = HERE / "stand_in"
    contexts = {
        IMAGE: _context(HERE / "node" / "Dockerfile", PROJECT / "trainer"),
        STAND_IN: _context(own / "Dockerfile", own / "train.py"),
    }
    content = hashlib.sha256(b"".join((tar.name.encode(), *contexts.values()))).hexdigest()
    cached = settings.cache / f"registry-{content[:12]}"
    there = f"{settings.container('services')}:/var/lib/registry"
    inside = engine.command("exec", "-i", settings.container(node))
    if cached.exists():
        engine.docker("cp", f"{cached}/.", there)
        for image in (BASE, *contexts):
            run(*inside, "docker", "pull", "-q", image)
        return
    _build(inside, tar, contexts)
    for old in settings.cache.glob("registry-*"):
        shutil.rmtree(old)
    unfinished = settings.cache / "registry-part"
    engine.docker("cp", f"{there}/.", unfinished)
    unfinished.rename(cached)


def _build(inside: list[str], tar: Path, contexts: Mapping[str, bytes]) -> None:
    """Build and push the images in a node: its CLI has the registry's certificate."""
    made = f"kit.lab.tar={tar.name}"
    if not run(*inside, "docker", "image", "ls", "-q", "--filter", f"label={made}", BASE):
        label = ("--change", f"LABEL {made}")
        run(*inside, "docker", "import", *label, "-", BASE, stdin=tar.read_bytes())
    # The classic builder suffices; the new one needs a separate package.
    build = ("env", "DOCKER_BUILDKIT=0", "docker", "build", "-q", "--build-arg", f"BASE={BASE}")
    for image, context in contexts.items():
        run(*inside, *build, "-t", image, "-", stdin=context)
    for image in (BASE, *contexts):
        run(*inside, "docker", "push", "-q", image)


def _context(dockerfile: Path, content: Path) -> bytes:
    """A Dockerfile and what it copies, without times: unchanged files give equal layers."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.mtime = member.uid = member.gid = 0
        return None if "__pycache__" in member.name else member

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(dockerfile, "Dockerfile", filter=plain)
        tar.add(content, content.name, filter=plain)
    return packed.getvalue()


def ask_python(settings: Settings, expression: str) -> str:
    """Evaluate an expression with the Python whose PyTorch the nodes see."""
    if not settings.python.exists():
        raise LabError(f"{settings.python} is not there: make setup, or set KIT_LAB_PYTHON", 2)
    return run(settings.python, "-c", f"import importlib.util, sys; print({expression})")


def torch(settings: Settings) -> None:
    """Link this machine's PyTorch to /opt/torch of all nodes, without copies."""
    source = Path(ask_python(settings, "importlib.util.find_spec('torch').origin")).parents[1]
    mark = settings.torch / ".from"
    pace = PACE.read_text()
    wanted = f"{source} {sorted(path.name for path in source.glob('*.dist-info'))} {pace}"
    if mark.exists() and mark.read_text() == wanted:
        return
    # The folder is mounted in the nodes: only its content is replaced.
    settings.torch.mkdir(parents=True, exist_ok=True)
    for path in settings.torch.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    # Nodes cannot write there: without bytecode every process would compile all modules.
    run(settings.python, "-c", COMPILE, *IMPORTS)
    same = source.stat().st_dev == settings.torch.stat().st_dev
    shutil.copytree(
        source,
        settings.torch,
        dirs_exist_ok=True,
        copy_function=os.link if same else shutil.copy2,
        ignore=shutil.ignore_patterns("*.pth", "_editable*"),
    )
    (settings.torch / PACE.name).write_text(pace)
    # The entry point by which PyTorch imports an installed backend.
    installed = settings.torch / "lab_pace-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: lab_pace\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[torch.backends]\nlab_pace = lab_pace:begin\n")
    mark.write_text(wanted)


def debian_suite(python: str) -> str:
    """The Debian release that has this version of Python: compiled modules fit no other."""
    suites = {"3.11": "bookworm", "3.13": "trixie"}
    if python not in suites:
        known = " or ".join(suites)
        raise LabError(f"no Debian release has Python {python}; set KIT_LAB_PYTHON to {known}", 2)
    return suites[python]


def debian_mirror() -> str | None:
    """On Debian the mirror that apt uses, else mmdebstrap's own."""
    release = platform.freedesktop_os_release()
    if release.get("ID") != "debian":
        return None
    wanted = release.get("VERSION_CODENAME", "")
    form = ("--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages")
    for line in run("apt-get", "indextargets", *form).splitlines():
        address, _, name = line.partition(" ")
        if name == wanted:
            return address
    return None
