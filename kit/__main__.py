"""The program `kit`, and `python -m kit`. Signals are handled before the imports."""

import signal
import sys
from types import FrameType

ENDS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class Interrupted(KeyboardInterrupt):
    """A signal to end this process. It unwinds like Ctrl-C, so that cleanup runs."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)


def main() -> None:
    """Run the command line."""
    try:
        for number in ENDS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
                signal.signal(number, _interrupt)
        from kit.cli import main as run

        status = run()
    except KeyboardInterrupt as error:
        sys.stderr.write("kit: interrupted\n")
        status = 128 + getattr(error, "number", signal.SIGINT)
    sys.exit(status)


if __name__ == "__main__":
    main()
