"""The inference server: python3 -m trainer.serve. Its settings are in config.py.

It serves the best complete checkpoint of a job, on each GPU of its container, and loads a newer one
while it answers requests. Start reading in server.py.

On SIGTERM it answers all accepted requests, then ends with exit code 0. The exit code is 2 for a
mistake in the input, 1 for a failure.
"""

import os
import signal
import sys


def main() -> int:
    """Serve until a signal arrives; return the exit code."""
    # During the import of torch there are no pending requests.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    from trainer.serve.server import serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())
