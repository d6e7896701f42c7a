"""The sections for a shared pool: jobs of the queue, its people, and hosts that are lent."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import time
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from kit.config.fields import Duration, Label, Section, text_field, wrong
from kit.config.resources import JobHostsSection
from kit.sharing import ALL_DAY, Hours, Person, Queued, Sharing
from kit.values import WrongValueError, dns_label
from trainer.contract.words import shown

DAY_AND_NIGHT = "all"
HOURS = r"(\d{2}:\d{2})\s*-\s*(\d{2}:\d{2})"


def _zone(value: object) -> str:
    """Check the name of a time zone."""
    fix = 'write a name of the tz database, for example "Europe/Berlin" or "UTC"'
    if not isinstance(value, str):
        raise WrongValueError(f"{value!r} is not a time zone", fix)
    try:
        ZoneInfo(value)
    except (ValueError, OSError, LookupError):
        raise WrongValueError(f"there is no time zone {value!r} here", fix) from None
    return value


def _hours(value: object) -> str:
    """Check hours such as `19:00-08:00`, or `all`."""
    fix = f'write for example "19:00-08:00", in quotes, or {DAY_AND_NIGHT}'
    if value == DAY_AND_NIGHT:
        return DAY_AND_NIGHT
    match = isinstance(value, str) and re.fullmatch(HOURS, value, re.ASCII)
    if not match:
        raise WrongValueError(f"{value!r} are not hours", fix)
    begin, end = match[1], match[2]
    for clock in (begin, end):
        hour, minute = map(int, clock.split(":"))
        if hour > 23 or minute > 59:
            raise WrongValueError(f"{clock} is not a time of the day", fix)
    if begin == end:
        raise WrongValueError(f"{value} begins when it ends", fix)
    return f"{begin}-{end}"


Zone = Annotated[str, *text_field(_zone, r"^[A-Za-z0-9_+/-]+$", "Europe/Berlin", "A time zone")]
LentHours = Annotated[
    str,
    *text_field(
        _hours,
        r"^(all|[0-9]{2}:[0-9]{2}\s*-\s*[0-9]{2}:[0-9]{2})$",
        "19:00-08:00",
        "Hours, which may pass midnight, or `all`",
    ),
]


class LendSection(Section):
    """When an owner lends a host to the queue's jobs."""

    to: Literal["pool"] = "pool"
    weekdays: LentHours | None = Field(None, description="Default: not on such days")
    weekends: LentHours | None = Field(None, description="Default: not on such days")
    zone: Zone | None = Field(None, description="Default: `queue.zone`")
    console: bool = Field(
        False, description="A login at its console takes the host back, like a process on its GPU"
    )

    @model_validator(mode="after")
    def _ever(self) -> LendSection:
        if self.weekdays is None and self.weekends is None:
            raise wrong("is never lent", "write `weekdays:` or `weekends:`, or leave `lend:` out")
        return self


class PersonSection(Section):
    """A person who has jobs in the queue."""

    share: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="Weight against the shares of the others"
    )
    max_gpus: int | None = Field(None, ge=1, description="Most GPUs at once; default: no limit")


class PoolSection(Section):
    """The queue: who shares the hosts, and how. Jobs with `queue:` take part."""

    people: dict[str, PersonSection] = Field(
        {},
        examples=[{"anna": {"share": 2}, "ben": {"max_gpus": 4}}],
        description="Default: the owners that jobs name, with equal shares",
    )
    half_life: Duration = Field(
        7 * 24 * 3600, description="Past use of a person counts half after this time"
    )
    zone: Zone = Field("UTC", description="The time zone of the hours in which hosts are lent")

    @field_validator("people")
    @classmethod
    def _named(cls, people: dict[str, PersonSection]) -> dict[str, PersonSection]:
        for name in people:
            try:
                dns_label(name)
            except WrongValueError as error:
                raise wrong(error.what, error.fix, name) from None
        return people


class RangeSection(Section):
    """The smallest and the largest number of GPUs of a job of the queue."""

    @model_validator(mode="before")
    @classmethod
    def _of_the_queue(cls, value: object) -> object:
        if isinstance(value, (str, int)):
            fix = "leave it out for all GPUs of the hosts, or write `hosts: {gpus_per_host: 1}`"
            raise wrong(f"{shown(value)} is not a range of a job with `queue`", fix)
        return value

    min: int = Field(1, ge=1)
    max: int | None = Field(None, ge=1, description="Default: all")

    @model_validator(mode="after")
    def _ordered(self) -> RangeSection:
        if self.max is not None and self.max < self.min:
            raise wrong(f"is smaller than `min`, {self.min}", f"write at least {self.min}", "max")
        return self


class QueuedSection(Section):
    """A job of the queue: `kit submit` submits it, the queue starts it."""

    owner: Label = Field(description="Owner of the job", examples=["anna"])
    priority: int = Field(50, ge=0, le=100, description="The highest comes first")


QueueKey = Annotated[
    QueuedSection | None,
    Field(
        examples=[{"owner": "anna", "priority": 50}],
        description="The job waits for its hosts in the queue: `kit submit` submits it; default: "
        "`kit deploy` starts it",
    ),
]
GpusKey = Annotated[
    RangeSection | None,
    Field(
        examples=[{"min": 2, "max": 8}],
        description="GPUs of a job with `queue`, on any of its hosts, not a number of hosts",
    ),
]
FIXED = {
    "session": ("is not for a session", "leave it out"),
    "tensorflow": (
        "TensorFlow needs a fixed list of hosts, and the queue changes the hosts",
        "leave it out",
    ),
    "parallel": (
        "ranks that divide a model keep their hosts, and the queue changes the hosts",
        "leave one of the two out",
    ),
}
"""Jobs that cannot change their hosts, and what to do."""


def check_queued(
    queue: QueuedSection | None,
    hosts: JobHostsSection,
    gpus: RangeSection | None,
    work: Collection[str],
) -> None:
    """Refuse keys of a job that contradict each other; `work` are the keys of `FIXED` that apply.

    Raises:
        PydanticCustomError: They do not.
    """
    if queue is None:
        fix = "leave it out, or write `queue: {owner: …}`"
        if gpus is not None:
            raise wrong("is for jobs with `queue`", fix, "gpus")
        if hosts.max is not None:
            raise wrong("is for jobs with `queue`", fix, "hosts", "max")
        return
    for name in (name for name in FIXED if name in work):
        raise wrong(*FIXED[name], "queue")
    if hosts.gpus is not None:
        raise wrong("the queue chooses the GPUs", "name hosts: `names`", "hosts", "gpus")
    for key in ("min", "max", "gpus_per_host"):
        if gpus is not None and getattr(hosts, key) is not None:
            what = "`gpus` says how many already, on any hosts"
            raise wrong(what, "leave one of the two out", "hosts", key)


def to_queued(
    section: QueuedSection | None, hosts: JobHostsSection, gpus: RangeSection | None
) -> Queued | None:
    """Convert the sections of a job to a value; None if it is not for the queue."""
    if section is None:
        return None
    if gpus is not None:
        return Queued(section.owner, section.priority, gpus.min, gpus.max, counts_gpus=True)
    return Queued(section.owner, section.priority, hosts.min or 1, hosts.max)


def to_sharing(section: PoolSection | None) -> Sharing:
    """Convert the inventory's section to a value; without one, all people are equal."""
    section = section or PoolSection()
    people = (Person(name, each.share, each.max_gpus) for name, each in section.people.items())
    return Sharing(tuple(people), section.half_life)


def to_hours(section: LendSection | None, zone: str) -> Hours | None:
    """Convert the hours of a host; None if it always belongs to the pool."""
    if section is None:
        return None
    days = _times(section.weekdays), _times(section.weekends)
    return Hours(section.zone or zone, *days, console=section.console)


def _times(hours: str | None) -> tuple[time, time] | None:
    if hours is None:
        return None
    if hours == DAY_AND_NIGHT:
        return ALL_DAY
    begin, _, end = hours.partition("-")
    return time.fromisoformat(begin), time.fromisoformat(end)
