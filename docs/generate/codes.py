"""The codes of `kit doctor`, as the end of the page on troubleshooting."""

from __future__ import annotations

from pathlib import Path

from kit.doctor.codes import CODES
from kit.doctor.findings import PAGE, Code

ROOT = Path(__file__).parents[2]
MARK = (
    "<!-- From here generated from kit/doctor/codes.py by `python -m docs.generate`, which "
    "`make examples` runs. Do not edit. -->\n"
)
HEAD = """
## Codes of kit doctor

[kit doctor](how-to/doctor.md) gives each finding a code, which does not change. Each check has run
against the fault that it names, made in a real Swarm:
[the table of faults](how-to/doctor.md#tested-faults).
"""


def troubleshooting_page() -> str:
    """Return the page with its handwritten part as it is."""
    before = (ROOT / PAGE).read_text(encoding="utf-8").partition(MARK)[0]
    return f"{before}{MARK}{HEAD}" + "".join(map(_entry, sorted(CODES.values(), key=_place)))


def _place(code: Code) -> tuple[int, str]:
    """Return the place of a code: families in the order of the checks, each by number."""
    families = list(dict.fromkeys(each.rpartition("-")[0] for each in CODES))
    return families.index(code.id.rpartition("-")[0]), code.id


def _entry(code: Code) -> str:
    kinds = [*(["a container tries it"] if code.active else [])]
    kinds += ["`kit deploy` looks at it, too"] if code.quick else []
    more = f" ({'; '.join(kinds)})" if kinds else ""
    return (
        f"\n### {code.id}\n\n"
        f"Checks that {code.title}{more}. If not: {code.cause}\n\n"
        f"What to do: {code.remedy}\n"
    )
