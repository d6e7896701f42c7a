"""A host's GPUs in `inventory.yaml`: a number, or a list with UUIDs or indexes."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, Tag, model_validator

from kit.config.fields import GpuUuid, Section, Size, tagged, wrong
from kit.errors import INVENTORY, Fault, Loc
from kit.model import Gpu, Use

MOST_GPUS_PER_HOST = 64
"""The largest servers hold 16 GPUs; a larger number is a typing error."""


class GpuSection(Section):
    """One GPU or MIG instance of a host, by its UUID or by its index."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["uuid"]}, {"required": ["index"]}]}
    )

    uuid: GpuUuid | None = None
    index: int | None = Field(
        None,
        ge=0,
        lt=MOST_GPUS_PER_HOST,
        description="Instead of the UUID: the number in `nvidia-smi -L`; then list all GPUs of the "
        "host by index",
        examples=[0],
    )
    model: str | None = Field(None, examples=["TITAN RTX"])
    memory: Size | None = None
    use: Literal["training", "inference", "spare", "none"] = Field(
        "training",
        description="`spare`: the GPU trains only while another host of the job is lost. `none`: "
        "kit does not use the GPU, for example because it has a display",
    )

    @model_validator(mode="after")
    def _has_one_name(self) -> Self:
        if self.uuid is None and self.index is None:
            raise wrong("is missing", "add for example `uuid: GPU-5f3a…`, or `index: 0`", "uuid")
        if self.uuid is not None and self.index is not None:
            raise wrong("the GPU has a UUID already", "keep one of the two", "index")
        return self

    @property
    def id(self) -> str:
        """The GPU's UUID, or its index."""
        return str(self.index) if self.uuid is None else self.uuid


def _count_or_list(value: object) -> str | None:
    if isinstance(value, list):
        return "<list>"
    return "<count>" if isinstance(value, int) and not isinstance(value, bool) else None


Gpus = Annotated[
    Annotated[int, Field(ge=0, le=MOST_GPUS_PER_HOST), Tag("<count>")]
    | Annotated[list[GpuSection], Tag("<list>")],
    tagged(
        _count_or_list,
        "this is not a list of GPUs",
        "write their number (`gpus: 4`) or a list of `- {uuid: GPU-…}`",
    ),
    Field(
        description="The number of GPUs, a list with UUIDs, or a list with indexes, which sets "
        "the use of each GPU",
        examples=[4, [{"uuid": "GPU-5f3a…", "memory": "24GiB"}]],
    ),
]


def to_gpus(section: int | list[GpuSection]) -> tuple[Gpu, ...]:
    """Return the GPUs of a host. GPUs that are known by index are sorted by index."""
    if isinstance(section, int):
        return tuple(Gpu(str(i), False, None, None, Use.TRAINING) for i in range(section))
    gpus = (Gpu(g.id, g.uuid is not None, g.model, g.memory, Use(g.use)) for g in section)
    return tuple(sorted(gpus, key=lambda gpu: 0 if gpu.known else int(gpu.id)))


def index_faults(host: Loc, gpus: list[GpuSection]) -> list[Fault]:
    """Check the indexes of one host: each GPU must be listed once."""
    by_index: dict[int, Loc] = {}
    faults = []
    for position, gpu in enumerate(gpus):
        loc = (*host, "gpus", position, "index")
        if gpu.index is None:
            continue
        if gpu.index in by_index:
            what = f"{gpu.index} is already listed (line {{line}})"
            fix = "give each GPU the index that `nvidia-smi -L` prints"
            faults.append(Fault(INVENTORY, loc, what, fix, by_index[gpu.index]))
        by_index.setdefault(gpu.index, loc)
    if not by_index or faults:
        return faults
    named = next((position for position, gpu in enumerate(gpus) if gpu.uuid), None)
    if named is not None:
        what = "some GPUs of the host have an index, some a UUID"
        return [Fault(INVENTORY, (*host, "gpus", named), what, "write one or the other for all")]
    missing = next((index for index in range(len(by_index)) if index not in by_index), None)
    if missing is None:
        return []
    what = f"GPU {missing} is not listed, GPU {max(by_index)} is"
    fix = f"list every GPU that the host has: `{{index: {missing}, use: none}}` excludes it"
    return [Fault(INVENTORY, (*host, "gpus"), what, fix)]
