"""Prints the packages of this image as CycloneDX: its bill of materials, which scanners read.

Without a time and a serial number: equal packages give equal bytes.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import quote

DEBIAN = Path("/var/lib/dpkg/status")


def main() -> None:
    """Print the document."""
    components = [*python_packages(), *debian_packages(DEBIAN)]
    sys.stdout.write(json.dumps(document(components), indent=1) + "\n")


def document(components: list[dict[str, str]]) -> Mapping[str, object]:
    """The document with each package once, in a fixed order."""
    once = {each["purl"]: each for each in components}
    ordered = [once[purl] for purl in sorted(once)]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": ordered}


def python_packages() -> Iterator[dict[str, str]]:
    """The installed distributions of Python."""
    for each in distributions():
        name = each.metadata["Name"]
        if name:
            yield component(name, each.version, f"pkg:pypi/{quote(name.lower())}@{each.version}")


def debian_packages(status: Path) -> Iterator[dict[str, str]]:
    """The installed packages of Debian or Ubuntu; none without dpkg."""
    text = status.read_text(encoding="utf-8", errors="replace") if status.exists() else ""
    for entry in text.split("\n\n"):
        lines = (line.partition(": ") for line in entry.splitlines() if line[:1] not in {" ", ""})
        fields = {key: value for key, _, value in lines}
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            place = f"{quote(name)}@{quote(version)}?arch={fields.get('Architecture', 'all')}"
            yield component(name, version, f"pkg:deb/debian/{place}")


def component(name: str, version: str, purl: str) -> dict[str, str]:
    """A package as CycloneDX has it."""
    return {"type": "library", "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    main()
