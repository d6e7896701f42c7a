"""The key `session` of a job: a container in which people work, instead of a script."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from kit.config.fields import AbsolutePath, Section, validator_of, wrong
from kit.jobs import Session
from kit.values import public_key

OF_OTHERS = (
    *("batch_size", "reference_batch", "parameters", "step_seconds", "exchange", "checkpoint"),
    *("parallel", "faults", "framework", "quiet", "metrics", "rendezvous"),
)
"""The keys that have no meaning for a session."""


def _home(home: str) -> str:
    if home == "/" or home.startswith(("/workspace", "/datasets", "/kit/", "/tmp")):
        raise wrong(f"{home} is a folder of the container", "write the home of the image's user")
    return home.rstrip("/")


class SessionSection(Section):
    """A container in which people work: with a shell, by SSH, and in JupyterLab."""

    keys: list[Annotated[str, AfterValidator(validator_of(public_key))]] = Field(
        [],
        examples=[["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA… anna@laptop"]],
        description="Public SSH keys of those who may come in; without any, only `kit shell` and "
        "JupyterLab lead into it",
    )
    home: Annotated[AbsolutePath, AfterValidator(_home)] = Field(
        "/root",
        description="The home of the image's user. It is a volume of the host, which stays, unless "
        "`mounts` has another one there",
    )
    started: str = Field(
        "",
        max_length=100,
        examples=["2026-11-27T09:30:00Z"],
        description="When `kit session start` wrote the file: with another text, the session has "
        "its whole time again",
    )


def to_session(section: SessionSection | None) -> Session | None:
    """Convert the section to a value."""
    return Session(section.home, tuple(section.keys), section.started) if section else None
