"""The names of files that do not belong to a data set, and the names of archives."""

from pathlib import PurePath

ARCHIVE_ENDS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip")
_LEFT = frozenset(
    {
        *("__macosx", "desktop.ini", "thumbs.db", "ehthumbs.db"),  # macOS, Windows.
        *("$recycle.bin", "system volume information", "lost+found"),  # Disks.
        *("@eadir", "@recycle", "@recently-snapshot", "@tmp", "#recycle", "#snapshot"),  # NAS.
        "__pycache__",
    }
)
"""Files and folders that systems create beside those of users, in lower case."""


def is_archive(name: str) -> bool:
    """Whether a file of this name is unpacked."""
    return name.lower().endswith(ARCHIVE_ENDS)


def is_hidden(name: str) -> bool:
    """Whether a file or folder belongs to a system, an editor or git, not to a data set."""
    return name.startswith(".") or name.lower() in _LEFT


def is_below_hidden(path: str) -> bool:
    """Whether a part of a path is hidden."""
    return any(map(is_hidden, PurePath(path).parts))
