"""Notifications: their kinds, and the URLs that receive them, for kit and the launcher."""

import re
from typing import Literal, get_args
from urllib.parse import urlsplit

Kind = Literal["completed", "failed", "ended", "host_lost", "left_out", "session_ending"]
KINDS: tuple[Kind, ...] = get_args(Kind)
USUAL = KINDS[:5]
"""The kinds that are sent by default, without `on`."""
WEB = ("http", "https")
"""The schemes of webhooks; the others are Apprise's."""


def scheme_of(url: str) -> str:
    """The scheme of a URL; "" if the text is not a URL."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://[^\s/]", url)
    return found[1].lower() if found and not re.search(r"[\s\x00-\x1f]", url) else ""


def shown_url(url: str) -> str:
    """A URL for people, without parts that may be secret."""
    scheme = scheme_of(url)
    if scheme not in WEB:  # Apprise's URLs may have tokens instead of the host.
        return f"{scheme}://…" if scheme else "…"
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return f"{scheme}://…"
    host = parts.hostname or ""
    return f"{scheme}://{f'[{host}]' if ':' in host else host}{port}/…"


def webhook_fault(url: str) -> str:
    """The fault in the URL of a webhook, or ""."""
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0 and url.isascii()
    except ValueError:
        usable = False
    if scheme_of(url) not in WEB or not usable:
        return "is no http:// or https:// URL"
    return "has a user or a password" if parts.username is not None else ""
