"""Lines for people, and failures that become such lines."""

from trainer.launcher.output import say


class KeeperError(Exception):
    """A failure; the message is for people."""


def tell(text: str) -> None:
    """Write one line for people."""
    say(text, program="keeper")
