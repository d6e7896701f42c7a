"""The inference server: python3 -m trainer.serve. Its settings are in config.py.

It answers with the newest complete checkpoint of a job, on each GPU that it was given, and takes
a newer one while it answers. Start reading in server.py.

It ends on SIGTERM once everything that it has accepted is answered, with exit code 0; a mistake
in the input is 2, a failure 1.
"""

import os
import signal
import sys


def main() -> int:
    """Serve until a signal comes; return the exit code."""
    # While torch is imported there is nothing to answer.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    from trainer.serve.server import serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())
