"""The rules for code that is not sent: .gitignore, .dockerignore, the job's, and kit's own.

The package pathspec, which black and others use, applies them by gitignore(5). .dockerignore
differs in two ways: a pattern begins at its folder, and a file below an excluded folder can be
included again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pathspec import GitIgnoreSpec, PathSpec
from pathspec.patterns.gitignore import GitIgnorePatternError

from kit.errors import InputError

ALWAYS = frozenset({".git", ".hg", ".svn", "__pycache__", ".ipynb_checkpoints", ".DS_Store"})
"""Files of version control, Python and systems, which no program of the job reads."""
SECRETS = GitIgnoreSpec.from_lines(
    (
        *(".env", ".env.*", "*.env", "!.env.example", "!.env.sample", "!.env.template", ".envrc"),
        *(".netrc", ".pypirc", ".npmrc", ".pgpass", ".git-credentials", ".htpasswd"),
        *("credentials", "credentials.json", "kaggle.json", "*service-account*.json"),
        *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx"),
        *("*.kdbx", ".aws/", ".ssh/", ".kube/", ".gnupg/", ".docker/", ".config/gcloud/"),
    )
)
"""Names under which programs keep secrets."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The patterns of one file, for paths below `base`."""

    base: Path
    patterns: PathSpec[Any]

    def verdict(self, path: Path, *, folder: bool) -> bool | None:
        """Return whether the last pattern that matches excludes a path; None: none matches."""
        name = path.relative_to(self.base).as_posix()
        return self.patterns.check_file(f"{name}/" if folder else name).include

    @property
    def has_exceptions(self) -> bool:
        """Whether a pattern includes files again, maybe below an excluded folder."""
        return any(each.include is False for each in self.patterns.patterns)


@dataclass(frozen=True, slots=True)
class Ignored:
    """The rules that apply in a folder: Git's, the deepest last; Docker's; the job's."""

    git: tuple[Rules, ...]
    docker: tuple[Rules, ...]
    job: tuple[Rules, ...]

    def within(self, folder: Path) -> Ignored:
        """Return the rules in a folder, which may have a .gitignore."""
        return replace(self, git=(*self.git, *_read(folder / ".gitignore", folder)))

    def excludes(self, path: Path, *, folder: bool) -> bool:
        """Return whether a file, or a folder with all its content, is left out."""
        verdicts = [each.verdict(path, folder=folder) for each in reversed(self.git)]
        last = next((each for each in verdicts if each is not None), False)
        return last or any(
            each.verdict(path, folder=folder)
            for each in (*self.docker, *self.job)
            if not (folder and each in self.docker and each.has_exceptions)
        )


def rules_of(folder: Path, exclude: Sequence[str]) -> Ignored:
    """Return the rules above a folder's own .gitignore; `exclude` are the job's patterns.

    Raises:
        InputError: A file of patterns cannot be read, or a pattern is wrong.
    """
    docker, lines = folder / ".dockerignore", _lines(folder / ".dockerignore")
    by_docker = _spec("gitignore", map(_from_root, lines), str(docker)) if lines else None
    by_job = _spec(GitIgnoreSpec, exclude, "code.exclude") if exclude else None
    return Ignored(
        tuple(_of_repository(folder)),
        (Rules(folder, by_docker),) if by_docker else (),
        (Rules(folder, by_job),) if by_job else (),
    )


def _of_repository(folder: Path) -> Iterator[Rules]:
    """Yield the rules of the repository that a folder is in, without the folder's own."""
    root = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)
    if root is None:
        return
    yield from _read(root / ".git" / "info" / "exclude", root)
    for each in reversed(folder.parents):
        if each.is_relative_to(root):
            yield from _read(each / ".gitignore", each)


def _from_root(line: str) -> str:
    """Return a line of .dockerignore as gitignore's: its patterns begin at the folder."""
    line = line.strip()
    if not line or line.startswith("#"):
        return ""
    sign, pattern = ("!", line[1:].strip()) if line.startswith("!") else ("", line)
    pattern = re.sub(r"^(\./|/)+", "", pattern)
    return f"{sign}/{pattern}" if pattern and pattern != "." else ""


def _read(file: Path, base: Path) -> Iterator[Rules]:
    if lines := _lines(file):
        yield Rules(base, _spec(GitIgnoreSpec, lines, str(file)))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None


def _spec(
    kind: type[GitIgnoreSpec] | Literal["gitignore"], lines: Iterable[str], where: str
) -> PathSpec[Any]:
    try:
        if kind == "gitignore":
            return PathSpec.from_lines(kind, lines)
        return GitIgnoreSpec.from_lines(lines)
    except GitIgnorePatternError as error:
        raise InputError(f"{where}: {error}", "correct the pattern, see gitignore(5)") from None
