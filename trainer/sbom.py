"""Prints the packages of this image as a CycloneDX bill of materials, for scanners.

It has neither time nor serial number: equal packages give equal bytes.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import quote

ROOT = Path("/")


def main() -> None:
    """Print the document."""
    components = [*python_packages(), *debian_packages(ROOT)]
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


def debian_packages(root: Path) -> Iterator[dict[str, str]]:
    """The installed packages of Debian or Ubuntu, which scanners distinguish; none elsewhere."""
    status, release = root / "var/lib/dpkg/status", root / "etc/os-release"
    if not (status.exists() and release.exists()):
        return
    distribution = fields_of(release.read_text(encoding="utf-8"), "=")["ID"].strip('"')
    for entry in status.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = fields_of(entry, ": ")
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            place = f"{quote(name)}@{quote(version)}?arch={fields.get('Architecture', 'all')}"
            yield component(name, version, f"pkg:deb/{distribution}/{place}")


def fields_of(text: str, separator: str) -> dict[str, str]:
    """The lines `key<separator>value` of a text; lines that continue a value are left out."""
    lines = (line.partition(separator) for line in text.splitlines() if line[:1] not in {" ", ""})
    return {key: value for key, _, value in lines}


def component(name: str, version: str, purl: str) -> dict[str, str]:
    """A package in CycloneDX's format."""
    return {"type": "library", "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    main()
