"""The controller as one file of kit's own modules, and its lines in the journal.

It needs only the standard library, so that kit need not be installed on the host.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

from kit.queue.service import Service

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of all files in the archive: the same modules give the same bytes."""


def packed(service: Service) -> bytes:
    """Return the program: an archive with kit's modules and the trainer's contract."""
    run = f"from {service.module} import main\n\nsys.exit({service.call})"
    root = Path(__file__).parents[2]
    rooms = [*(root / "kit").rglob("*.py"), *(root / "trainer" / "contract").rglob("*.py")]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo("__main__.py", EPOCH), f"import sys\n\n{run}\n")
        for path in sorted([*rooms, root / "trainer" / "__init__.py"]):
            entry = zipfile.ZipInfo(path.relative_to(root).as_posix(), EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, path.read_bytes())
    return archive.getvalue()


def say(text: str) -> None:
    """Write a line for the journal, and flush it: Python buffers output to a pipe."""
    sys.stdout.write(f"queue: {text}\n")
    sys.stdout.flush()
