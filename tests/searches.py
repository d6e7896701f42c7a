"""Whether the site's search finds the page for what people type: `python -m tests.searches site`.

`make docs` runs it on the index that it has built. lunr.py ranks as lunr.js does in the browser,
with the settings of the index, and as MkDocs' theme uses them: each word is the beginning of a
word, and results of one page are one result.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from lunr.builder import Builder
from lunr.index import Index
from lunr.stop_word_filter import stop_word_filter

FIRST = 3
"""The page must be among so many results."""

# What people type, and the page that answers it.
QUERIES = {
    "shm_size": "troubleshooting",
    "shared memory": "troubleshooting",
    "DataLoader worker is killed": "troubleshooting",
    "NCCL timeout": "troubleshooting",
    "NCCL_SOCKET_IFNAME": "troubleshooting",
    "socket ifname": "troubleshooting",
    "NCCL_DEBUG": "reference/inventory",
    "nccl wrong interface": "troubleshooting",
    "docker swarm gpu": "how-to/hosts",
    "generic resources": "how-to/hosts",
    "node-generic-resources": "how-to/hosts",
    "daemon.json": "how-to/hosts",
    "nvidia container toolkit": "how-to/hosts",
    "connection refused 29500": "troubleshooting",
    "29400": "reference/ports",
    "permission denied docker.sock": "troubleshooting",
    "torchrun": "how-to/own-script",
    "nproc_per_node": "how-to/own-script",
    "accelerate launch": "how-to/frameworks",
    "deepspeed hostfile": "how-to/frameworks",
    "huggingface trainer": "how-to/frameworks",
    "HF_TOKEN": "how-to/frameworks",
    "lightning num_nodes": "how-to/frameworks",
    "TF_CONFIG": "how-to/tensorflow",
    "fsdp": "how-to/divided-models",
    "tensor parallel": "how-to/divided-models",
    "out of memory": "troubleshooting",
    "gradient accumulation": "how-to/jobs",
    "slow network": "how-to/jobs",
    "resume from checkpoint": "how-to/operate",
    "imagenet": "how-to/jobs",
    "webdataset": "how-to/jobs",
    "cifar10 download": "how-to/images",
    "s3": "how-to/data",
    "vllm": "how-to/own-server",
    "triton": "how-to/own-server",
    "openai api": "how-to/serve",
    "haproxy": "how-to/serve",
    "jupyter": "how-to/sessions",
    "vscode": "how-to/sessions",
    "tensorboard": "how-to/report",
    "wandb": "how-to/report",
    "grafana": "how-to/monitoring",
    "dcgm exporter": "how-to/monitoring",
    "slack": "how-to/notify",
    "slurm": "how-to/own-script",
    "priority": "how-to/share-a-pool",
    "mig": "how-to/hosts",
    "infiniband": "how-to/hosts",
    "dgx spark": "how-to/hosts",
    "arm64": "how-to/own-image",
    "firewall ports": "reference/ports",
    "air gapped": "how-to/air-gap",
    "proxy certificate": "start/this-machine",
    "ansible": "how-to/git",
    "xid 79": "how-to/doctor",
    "exec format error": "how-to/hosts",
    "straggler": "how-to/monitoring",
}


class Site:
    """The search of a built site."""

    def __init__(self, folder: Path) -> None:
        found = json.loads((folder / "search" / "search_index.json").read_text(encoding="utf-8"))
        self._separator = re.compile(found["config"]["separator"])
        self._index = self._build(found["docs"], found["config"]["fields"])

    def _build(self, sections: list[dict[str, str]], fields: dict[str, Any]) -> Index:
        builder = Builder()
        builder.pipeline.add(stop_word_filter)
        builder.search_pipeline.reset()
        builder.ref("location")
        builder.b(0)
        for field, settings in fields.items():
            builder.field(field, boost=settings["boost"])
        for section in sections:
            words = {field: self._words(section.get(field, "")) for field in fields}
            builder.add({"location": section["location"], **words})
        return builder.build()

    def _words(self, html: str) -> list[str]:
        text = unescape(re.sub(r"<[^>]+>", " ", html)).lower()
        return [word for word in self._separator.split(text) if word]

    def pages(self, query: str) -> Iterator[str]:
        """Yield the pages that a query finds, the best first."""
        terms = self._words(query)
        ranked = []
        for result in self._index.search(" ".join(f"{term}*" for term in terms)):
            words = result["match_data"].metadata
            matched = sum(any(word.startswith(term) for word in words) for term in terms)
            boost = ("#" not in result["ref"]) + matched / len(terms)
            ranked.append((result["score"] * (1 + boost**2), result["ref"]))
        ranked.sort(key=lambda each: -each[0])
        yield from dict.fromkeys(ref.partition(".html")[0] for _, ref in ranked)


def main() -> None:
    """Print each query that misses its page, with what it finds."""
    site, missed = Site(Path(sys.argv[1])), 0
    for query, page in QUERIES.items():
        found = list(site.pages(query))
        if page not in found[:FIRST]:
            missed += 1
            place = found.index(page) + 1 if page in found else "none"
            print(f"{query}: {page} has place {place}, after {', '.join(found[:FIRST])}")
    if missed:
        sys.exit(f"{missed} of {len(QUERIES)} queries do not find their page")


if __name__ == "__main__":
    main()
