"""The rendered examples in compose/, from the inventories in tests/examples/: `make examples`.

A reviewer reads them, and reads what several have alike once: files of more than `LONG` lines that
are equal in several examples are in compose/_shared/, at the same path, and not in the examples.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from click.testing import CliRunner

from kit.cli import cli

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(path.name for path in (ROOT / "tests" / "examples").iterdir())
SHARED = "_shared"
LONG = 100
"""Lines: programs and dashboards, and no file of a workload."""

Tree = dict[str, bytes]
"""The content of files by their path below a folder."""


def rendered(folder: Path) -> dict[str, Tree]:
    """Render all examples below `folder`; return what belongs into compose/, by folder."""
    trees = {name: _render(name, folder / name) for name in NAMES}
    found = Counter(pair for tree in trees.values() for pair in tree.items())
    shared = {
        path: content
        for (path, content), number in found.items()
        if number > 1 and content.count(b"\n") > LONG
    }
    own = {
        name: {path: text for path, text in tree.items() if shared.get(path) != text}
        for name, tree in trees.items()
    }
    return {SHARED: shared, **own}


def _render(name: str, folder: Path) -> Tree:
    inventory = f"{ROOT}/tests/examples/{name}/inventory.yaml"
    done = CliRunner().invoke(cli, ["render", "-i", inventory, "-o", str(folder)])
    assert done.exit_code == 0, done.output
    return read(folder)


def read(folder: Path) -> Tree:
    """Return the files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def main() -> None:
    """Write compose/ anew, except for the cluster of the root."""
    place = ROOT / "compose"
    with tempfile.TemporaryDirectory() as name:
        for folder, tree in rendered(Path(name)).items():
            shutil.rmtree(place / folder, ignore_errors=True)
            for path, content in tree.items():
                (place / folder / path).parent.mkdir(parents=True, exist_ok=True)
                (place / folder / path).write_bytes(content)


if __name__ == "__main__":
    main()
