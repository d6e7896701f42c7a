"""Explanations of Kubernetes' reasons: no pod is created, or no node takes it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kit.values import count

GPU = "nvidia.com/gpu"
_QUOTA = re.compile(r"exceeded quota: ([^,]+), requested: (.+), used: (.+), limited: (.+)$")
_NODES = re.compile(r"0/\d+ nodes are available: (.*?)\.(?: |$)")
_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" (not found|is being deleted)')
_UNBOUND = ("unbound immediate PersistentVolumeClaims", "find available persistent volumes")
_TAINTED = r"node\(s\) had untolerated taint\(?s?\)?"
_TAINT = rf"{_TAINTED} ?\{{"
OTHERS = "node affinity/selector"
"""The reason of nodes that are not hosts of the workload."""
TAKEN = "a pod of it already"
WORDS = {
    rf"Insufficient {re.escape(GPU)}": f"no free GPU ({GPU})",
    r"cannot allocate all claims": "no free GPU with one of its UUIDs (kubectl get resourceslices)",
    r"Insufficient (\S+)": r"too little free \1",
    r"node\(s\) didn't match pod anti-affinity rules": TAKEN,
    r"node\(s\) were unschedulable": "been cordoned (kubectl uncordon)",
    rf"{_TAINT}node.kubernetes.io/(?:unreachable|not-ready)\b.*": "stopped to answer",
    rf"{_TAINT}node.kubernetes.io/(\S+)-pressure\b.*": r"too little \1 (kubectl describe node)",
    rf"{_TAINT}(\S+?):? .*": r"the taint \1",
    # The schedulers of newer versions do not name it.
    _TAINTED: "a taint (kubectl describe node): it lacks disk or memory, or is for other pods",
}
"""The scheduler's messages about some nodes, and kit's after “2 nodes have”."""


def refused(text: str) -> str:
    """Return why a controller could not create a pod, from its event."""
    if quota := _QUOTA.search(text):
        name, requested, used, limit = quota.groups()
        return (
            f"the quota {name} of the namespace does not suffice: it limits {limit}; {used} is "
            f"used, and {requested} was requested"
        )
    return text.rpartition(" is forbidden: ")[2].removeprefix("Error creating: ")


def unplaced(text: str) -> str:
    """Return why no node takes a pod, from the scheduler's message."""
    if claim := _CLAIM.search(text):
        name, state = claim.groups()
        if state == "not found":
            return f"its volume claim {name} is not there: deploy its job, or create the claim"
        return f"its volume claim {name} is being deleted"
    if any(words in text for words in _UNBOUND):
        return (
            "its volume claim gets no volume: see `kubectl describe pvc`, and correct "
            "`kubernetes: {storage_class: …}`"
        )
    nodes = _NODES.match(text)
    if nodes is None:
        return f"no node takes it: {text}"
    parts = re.findall(r"(\d+) (.+?)(?=, \d+ |$)", nodes[1])
    words = [*_described(parts)]
    if all(each.endswith(TAKEN) for each in words):
        words.append("compare the hosts with `kubectl get nodes -L kubernetes.io/hostname`")
    return f"no node takes it: {'; '.join(words)}"


def _described(parts: list[tuple[str, str]]) -> Iterator[str]:
    for number, words in parts:
        if OTHERS in words:
            continue
        who = f"{count(int(number), 'node')} {'has' if number == '1' else 'have'}"
        for pattern, own in WORDS.items():
            if found := re.fullmatch(pattern, words):
                yield f"{who} {found.expand(own)}"
                break
        else:
            yield f"{number} {words}"
