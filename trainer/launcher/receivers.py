"""The receivers of notifications, and their URLs and keys from files of secrets."""

import base64
import binascii
import importlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trainer.contract.notify import WEB, scheme_of, shown_url, webhook_fault
from trainer.launcher.errors import LaunchError
from trainer.launcher.output import say

BASE64_KEY = "whsec_"  # Prefix of a key in base64, as in Standard Webhooks.
SECRET_FILES = Path("/run/secrets")


class Receiver(NamedTuple):
    """A receiver of notices of some kinds. `shown` is its URL for people."""

    url: str
    shown: str
    kinds: frozenset[str]
    key: bytes  # b"": without a signature.
    apprise: Any  # The object of the library that sends; None: a webhook.


class Wanted(NamedTuple):
    """The notifications of a job, from KIT_NOTIFY."""

    job: str
    cluster: str
    receivers: list[dict[str, Any]]


def read_wanted(text: str) -> Wanted:
    """Read KIT_NOTIFY; raises LaunchError."""
    with suppress(ValueError, TypeError, KeyError):
        found = json.loads(text)
        receivers = [dict(each) for each in found["receivers"]]
        if all(isinstance(each["on"], list) for each in receivers):
            return Wanted(str(found["job"]), str(found["cluster"]), receivers)
    raise LaunchError("KIT_NOTIFY must be the JSON that kit render writes")


def read_receivers(
    wanted: Wanted, environ: Mapping[str, str], warn: Callable[[str], None]
) -> Iterator[Receiver]:
    """Yield the usable receivers; warn of others with the reason."""
    for number, each in enumerate(wanted.receivers, 1):
        try:
            yield read_receiver(each, environ)
        except LaunchError as error:
            warn(f"receiver {number} of notify cannot be used: {error}")


def read_receiver(entry: Mapping[str, Any], environ: Mapping[str, str]) -> Receiver:
    """Read one receiver; raises LaunchError."""
    secret = entry.get("secret")
    url = read_value_of(str(secret), environ).strip() if secret else str(entry.get("url", ""))
    where, kinds = shown_url(url), frozenset(map(str, entry["on"]))
    key = read_key(str(entry["key"]), environ) if entry.get("key") else b""
    if not (scheme := scheme_of(url)):
        raise LaunchError(f"the secret {secret} is no URL, such as https://… or tgram://…")
    if scheme not in WEB:
        if key:
            say(f"{where} gets no signature: only webhooks have one")
        return Receiver(url, where, kinds, b"", open_apprise(url, where))
    if fault := webhook_fault(url):
        raise LaunchError(f"{where} {fault}")
    return Receiver(url, where, kinds, key, None)


def read_value_of(name: str, environ: Mapping[str, str]) -> str:
    """The value of a secret: from its file or, without containers, from its variable."""
    file = SECRET_FILES / name
    with suppress(FileNotFoundError, NotADirectoryError):
        return file.read_text()
    if value := environ.get(name):
        return value
    raise LaunchError(f"the secret {file} is not there; kit deploy makes it")


def read_key(name: str, environ: Mapping[str, str]) -> bytes:
    """The key of signatures: the text itself, or base64 after the prefix."""
    text = read_value_of(name, environ).strip()
    if not text.startswith(BASE64_KEY):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(BASE64_KEY), validate=True)
    except binascii.Error:
        raise LaunchError(f"the secret {name} has no base64 behind {BASE64_KEY}") from None


def open_apprise(url: str, where: str) -> Any:
    """An object of Apprise that sends to a URL; raises LaunchError."""
    # Its warnings may name tokens.
    logging.getLogger("apprise").addHandler(logging.NullHandler())
    logging.getLogger("apprise").propagate = False
    try:
        library = importlib.import_module("apprise")
    except ImportError:
        what = f"{where} needs the Python library apprise, which is not here"
        fix = "install it in the image, or use a webhook to an Apprise API server"
        raise LaunchError(f"{what}: {fix}") from None
    found = library.Apprise()
    if not found.add(url):
        raise LaunchError(f"{where} is no URL that Apprise knows")
    return found
