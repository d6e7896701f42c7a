"""The nodes of a cluster as hosts of an inventory, by the labels of GPU feature discovery. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kit.model import Host
from kit.values import count, show_size

HOSTNAME = "kubernetes.io/hostname"
GPUS = "nvidia.com/gpu"
PRODUCT = f"{GPUS}.product"
MEMORY = f"{GPUS}.memory"
"""The label with the memory of each GPU, in MiB."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `name` is its label, `memory` each GPU's in bytes, `why` why it takes no pods."""

    name: str
    address: str
    gpus: int
    product: str
    memory: int
    why: str

    @property
    def entry(self) -> str:
        """Its line in an inventory."""
        if not self.product:
            return f"{self.name}: {{address: {self.address}, gpus: {self.gpus}}}"
        size = f", memory: {show_size(self.memory)}" if self.memory else ""
        gpus = ", ".join(
            f"{{index: {index}, model: {self.product}{size}}}" for index in range(self.gpus)
        )
        return f"{self.name}: {{address: {self.address}, gpus: [{gpus}]}}"


def read_node(document: Mapping[str, Any]) -> Node:
    """Return a node of the API."""
    meta, status = document["metadata"], document["status"]
    labels = meta.get("labels") or {}
    addresses = {each["type"]: each["address"] for each in status.get("addresses") or ()}
    name = labels.get(HOSTNAME) or meta["name"]
    memory = labels.get(MEMORY, "")
    return Node(
        name=name,
        address=addresses.get("InternalIP") or name,
        gpus=int((status.get("allocatable") or {}).get(GPUS) or 0),
        product=labels.get(PRODUCT, ""),
        memory=int(memory) * 2**20 if memory.isdecimal() else 0,
        why=_why(document.get("spec") or {}, status),
    )


def _why(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    if conditions.get("Ready") != "True":
        return "not ready"
    return "cordoned" if spec.get("unschedulable") else ""


def compare(
    nodes: Sequence[Node], hosts: Sequence[Host], *, pool: bool, product: str | None = None
) -> Iterator[str]:
    """Yield the lines that would make the inventory fit the nodes; `product` is the pool's."""
    able = [node for node in nodes if node.gpus]
    if not able:
        yield f"no node offers {GPUS}: install NVIDIA's device plugin or the GPU operator"
    if pool:
        yield from _lacking(able, hosts, product)
        return
    kinds = {(node.gpus, node.product) for node in able}
    known = {host.name: host for host in hosts}
    for name in sorted(known.keys() - {node.name for node in nodes}):
        yield f"{name} is no node: remove it, or correct its name"
    for node in able:
        if node.name not in known:
            yield f"add to hosts: `{node.entry}`"
        elif len(known[node.name].gpus) != node.gpus:
            own = len(known[node.name].gpus)
            yield f"{node.name} offers {count(node.gpus, 'GPU')}, the inventory has {own}"
    if len(able) > 1 and len(kinds) == 1:
        ((gpus, product),) = kinds
        named = f", product: {product}" if product else ""
        pool_of = f"nodes: {{count: {len(able)}, gpus: {gpus}{named}}}"
        yield f"all are alike: `{pool_of}` is a pool of them"


def _lacking(able: Sequence[Node], hosts: Sequence[Host], product: str | None) -> Iterator[str]:
    """Yield why the nodes with GPUs are too few for a pool."""
    models = sorted({node.product for node in able if node.product})
    if product and models and product not in models:
        yield f"no node has GPUs of the product {product}: nodes have {', '.join(models)}"
        return
    gpus = len(hosts[0].gpus)
    fit = [
        node
        for node in able
        if node.gpus >= gpus and not node.why and product in {None, node.product}
    ]
    if len(fit) < len(hosts):
        wanted = count(gpus, "GPU") + (f" of {product}" if product else "")
        others = "; ".join(f"{node.name} is {node.why}" for node in able if node.why)
        why = f" ({others})" if others else ""
        yield f"the pool has {len(hosts)} nodes, and {len(fit)} with {wanted} take pods{why}"
