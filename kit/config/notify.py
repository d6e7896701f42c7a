"""The key `notify` of the inventory and of a job: the receivers of notifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field, Tag, WithJsonSchema, field_validator

from kit.config.fields import Section, only_key, tagged, validator_of, wrong
from kit.config.variables import SecretFile, own_variable
from kit.model import Receiver, Secret
from kit.values import WrongValueError
from trainer.contract.notify import USUAL, WEB, Kind, scheme_of, webhook_fault

EXAMPLE = "write for example `notify: [{url: https://hooks.example.com/kit}]`"
SOURCE = "write `{env: NAME}` (a variable where kit runs) or `{file: ~/url}`"


def _webhook(url: object) -> str:
    """Check the URL of a webhook; it may hold a secret, so no message shows it."""
    text = str(url)
    scheme = scheme_of(text)
    if scheme and scheme not in WEB:
        raise WrongValueError("a URL of Apprise holds passwords or tokens", SOURCE)
    if fault := webhook_fault(text):
        secret = SOURCE if scheme else "write for example https://hooks.example.com/kit"
        raise WrongValueError(fault, secret)
    return text


class SecretVariable(Section):
    """A secret from an environment variable of `kit deploy`."""

    env: Annotated[str, BeforeValidator(validator_of(own_variable))]


def _url_kind(value: object) -> str | None:
    return "<text>" if isinstance(value, str) else only_key(value, ("env", "file"))


def _key_kind(value: object) -> str | None:
    return "<none>" if value is None else only_key(value, ("env", "file"))


Webhook = Annotated[
    str,
    BeforeValidator(validator_of(_webhook)),
    WithJsonSchema({"type": "string", "pattern": "^https?://"}),
]
Url = Annotated[
    Annotated[Webhook, Tag("<text>")]
    | Annotated[SecretVariable, Tag("<env>")]
    | Annotated[SecretFile, Tag("<file>")],
    tagged(_url_kind, "is no URL", SOURCE),
    Field(
        description="A webhook, `https://…`. A URL with a secret, and each URL of Apprise, comes "
        "from a variable or a file of the machine that runs `kit deploy`",
        examples=["https://hooks.example.com/kit", {"env": "TELEGRAM_URL"}],
    ),
]
Key = Annotated[
    Annotated[SecretVariable, Tag("<env>")]
    | Annotated[SecretFile, Tag("<file>")]
    | Annotated[None, Tag("<none>")],
    tagged(
        _key_kind,
        "names the source of the key, not the key itself",
        "write `{env: NAME}` (a variable where kit runs) or `{file: ~/key}`",
    ),
    Field(description="The secret that signs what a webhook sends; default: no signature"),
]


class NotifySection(Section):
    """A receiver of notifications: a webhook, or a service that Apprise knows."""

    url: Url
    on: list[Kind] = Field(
        list(USUAL),
        min_length=1,
        examples=[["completed", "failed"]],
        description="Kinds of notifications that it gets",
    )
    key: Key = Field(None, examples=[{"env": "HOOK_KEY"}])

    @field_validator("on")
    @classmethod
    def _once(cls, kinds: list[str]) -> list[str]:
        for index, kind in enumerate(kinds):
            if kind in kinds[:index]:
                raise wrong(f"{kind} is named twice", "keep one of the two", index)
        return kinds


def _unshown(receivers: object) -> object:
    """Refuse a value that is not a list of mappings: pydantic's message would show a secret URL."""
    if not isinstance(receivers, list):
        raise wrong("is not a list of receivers", EXAMPLE)
    for index, each in enumerate(receivers):
        if not isinstance(each, dict | NotifySection):
            raise wrong("is not a receiver", EXAMPLE, index)
    return receivers


Notify = Annotated[
    list[NotifySection],
    BeforeValidator(_unshown),
    Field(examples=[[{"url": "https://hooks.example.com/kit"}]]),
]


def to_receivers(sections: Sequence[NotifySection], prefix: str) -> tuple[Receiver, ...]:
    """Convert the sections; secrets from files have names with this prefix in the container."""
    return tuple(
        Receiver(
            url=each.url
            if isinstance(each.url, str)
            else _secret(each.url, f"{prefix}_{number}_URL"),
            on=tuple(each.on),
            key=_secret(each.key, f"{prefix}_{number}_KEY") if each.key else None,
        )
        for number, each in enumerate(sections, 1)
    )


def _secret(section: SecretVariable | SecretFile, name: str) -> Secret:
    if isinstance(section, SecretVariable):
        return Secret(section.env, None)
    return Secret(name, section.file)
