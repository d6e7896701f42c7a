"""Waiting for services that may start later."""

import time
from collections.abc import Callable
from typing import TypeVar

from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.output import say

REPEAT = 30  # Seconds between two lines about a service that does not answer.
Answer = TypeVar("Answer")


class BrokenAnswerError(OSError):
    """A service has sent an incomplete answer, so it was up."""


def until_answered(
    ask: Callable[[], Answer], names: tuple[str, str, str], wait: float, advice: str, kind: str
) -> Answer:
    """Call `ask` twice a second until it returns an answer; log the errors at intervals.

    `names` are the service, its address, and the beginning of the message if it never answers.
    Raises LaunchError after `wait` seconds of silence.
    """
    service, place, nobody = names
    began, said = time.monotonic(), ("", 0.0)
    while True:
        try:
            return ask()
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            if isinstance(error, BrokenAnswerError):
                began = time.monotonic()
        waited = time.monotonic() - began
        if waited > wait:
            silence = f"{nobody} {place} for {wait} s ({reason})"
            raise LaunchError(f"{silence}; {advice}", FAILURE, kind)
        if said != (reason, waited // REPEAT):
            say(f"waits {wait - waited:.0f} s for {service} at {place} ({reason})")
            said = reason, waited // REPEAT
        time.sleep(0.5)
