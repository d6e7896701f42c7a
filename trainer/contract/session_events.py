"""Events of sessions."""

from __future__ import annotations

from trainer.contract.events import Event


class Session(Event):
    """The state of a session, when it changes and every minute.

    It ends at `until` (seconds since 1970, 0: never), or after it was `unused` for `idle` seconds
    (0: never). `connected` counts connections from outside. `ssh` and `jupyter` say why there is
    no such way in, "" if there is. `ended` says why the session ends now.
    """

    NAME = "session"
    until: float
    connected: int = 0
    unused: float = 0.0
    idle: float = 0.0
    ssh: str = ""
    jupyter: str = ""
    ended: str = ""
