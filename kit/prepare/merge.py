"""Merge what kit needs into the daemon.json of a host. Pure.

It needs only the standard library of Python 3.7: `kit render` writes it into the tree, as a part of
prepare-daemon.py, and prepare-host.sh runs that program on the host.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

KIND = "kit_gpu="
"""GPUs of this kind belong to kit; other kinds, as of NVIDIA's playbook, to the operator."""
RELOADABLE = {"default-runtime", "insecure-registries", "runtimes"}
"""Keys that dockerd reads again on SIGHUP; for others it must be restarted
(docs.docker.com/reference/cli/dockerd, "Configuration reload behavior")."""
LOGS = ("log-driver", "log-opts")
"""Keys that only belong together: options of one driver are no options of another."""


class Merged(NamedTuple):
    """The merged configuration; `apply` is `restart`, `reload` or `nothing`."""

    config: Any
    conflicts: list[str]
    notes: list[str]
    apply: str


def merge_texts(present: str, wanted: str) -> tuple[list[str], str]:
    """Return the report for prepare-host.sh, and the merged file, "" if there is a conflict.

    Each line of the report begins with `conflict`, `note` or `apply`.
    """
    try:
        result = merge(json.loads(present), json.loads(wanted))
    except ValueError as error:
        return [f"conflict this is not JSON: {error}"], ""
    report = [f"conflict {text}" for text in result.conflicts]
    report += [f"note {text}" for text in result.notes]
    if report and result.conflicts:
        return report, ""
    return [*report, f"apply {result.apply}"], write(result.config, present)


def merge(present: Any, wanted: Any) -> Merged:
    """Add the keys of `wanted` to `present`, whose own keys and values stay.

    A value of the operator that excludes kit's is a conflict. `node-generic-resources` of kit's own
    kind are replaced: these are the GPUs of the inventory.
    """
    if not isinstance(present, dict):
        return Merged(present, ["this is no JSON object"], [], "nothing")
    result, conflicts = dict(present), []
    own_logs = [key for key in LOGS if key in present]
    for key, value in wanted.items():
        if key not in present:
            if not (key in LOGS and own_logs):
                result[key] = value
        elif key not in LOGS:
            result[key], conflict = _merge_value(key, present[key], value)
            conflicts += [conflict] if conflict else []
    if wanted.get("node-generic-resources") and present.get("live-restore") is True:
        conflicts.append('"live-restore": true excludes a Swarm; set it to false')
    kept = [key for key in own_logs if present[key] != wanted.get(key)]
    notes = [f"{' and '.join(kept)} stay; kit's own limit a log to 30 MB"] if kept else []
    notes += _offered_twice(present, wanted)
    changed = {key for key in result if key not in present or result[key] != present[key]}
    apply = "restart" if changed - RELOADABLE else "reload" if changed else "nothing"
    return Merged(result, conflicts, notes, apply)


def _merge_value(key: str, present: Any, wanted: Any) -> tuple[Any, str]:
    """Return the merged value of a key that both have, and the conflict or ""."""
    if type(present) is type(wanted):
        if key == "node-generic-resources":
            return _merge_gpus(present, wanted), ""
        if isinstance(wanted, list):
            return present + [each for each in wanted if each not in present], ""
        if isinstance(wanted, dict):
            return _merge_objects(key, present, wanted)
    if present == wanted:
        return present, ""
    return present, f'"{key}" is {json.dumps(present)}; kit needs {json.dumps(wanted)}'


def _merge_gpus(present: list[Any], wanted: list[str]) -> list[Any]:
    others = [each for each in present if not str(each).startswith(KIND)]
    own = [each for each in present if str(each).startswith(KIND)]
    return present if sorted(own) == sorted(wanted) else others + wanted


def _offered_twice(present: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Name the operator's resources that are GPUs of kit; recipes cut their UUIDs short."""
    listed = present.get("node-generic-resources")
    own = [each.partition("=")[2].lower() for each in wanted.get("node-generic-resources", [])]
    others = [str(each) for each in (listed if isinstance(listed, list) else [])]
    return [
        f"{each} stays: other services of the Swarm can take that GPU as well"
        for each in others
        if not each.startswith(KIND)
        and any(gpu.startswith(each.partition("=")[2].lower() or "-") for gpu in own)
    ]


def _merge_objects(
    key: str, present: dict[str, Any], wanted: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    result = {**wanted, **present}
    for name, value in wanted.items():
        if key == "runtimes" and not _same_runtime(result[name], value):
            found, needed = json.dumps(result[name]), json.dumps(value)
            return present, f'"runtimes": "{name}" is {found}; kit needs {needed}'
    # The operator's order first.
    return {**present, **{name: result[name] for name in result if name not in present}}, ""


def _same_runtime(present: Any, wanted: Any) -> bool:
    """Return whether both start the same program: nvidia-ctk adds empty `args`."""
    if not isinstance(present, dict) or present.get("args") or present.get("runtimeArgs"):
        return False
    return str(present.get("path")).rpartition("/")[2] == str(wanted.get("path"))


def write(config: Any, like: str) -> str:
    """Return a configuration as text, indented as the text `like`."""
    found = re.search(r"^([ \t]+)\S", like, re.MULTILINE)
    return json.dumps(config, indent=found[1] if found else 2, ensure_ascii=False) + "\n"
