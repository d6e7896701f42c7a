"""The web server of the store.

    python -m trainer.datasets.server --store /store --port 8090

KIT_KEY names the secret with the cluster's key, which clients must send; by default there is none.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import uvicorn

from trainer.contract.bearer import read_key
from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.datasets.web import listen, make_app, make_config
from trainer.output import say, say_error


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(prog="server", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", type=Path, required=True, help="folder of the store")
    parser.add_argument("--address", default="", help="listen only there; default: everywhere")
    parser.add_argument("--port", type=int, default=8090)
    options = parser.parse_args(arguments)
    try:
        require_folder(options.store)
        key = require_key()
        listener = listen(options.address, options.port)
    except DataSetError as error:
        say_error(f"data server: error: {error}")
        return error.code
    say(f"data server: offers {options.store} on port {listener.getsockname()[1]}")
    uvicorn.Server(make_config(make_app([options.store], data=True, key=key))).run(
        sockets=[listener]
    )
    return 0


def require_key() -> bytes | None:
    """Return the cluster's key, or None without one; raises DataSetError if it is missing."""
    try:
        return read_key(os.environ)
    except ValueError as error:
        what, _, fix = str(error).partition("; ")
        raise DataSetError(what, fix, MISTAKE) from None


def require_folder(folder: Path) -> None:
    """Raise DataSetError if a folder does not exist."""
    if not folder.is_dir():
        fix = "mount the volume of the store there"
        raise DataSetError(f"--store: there is no folder {folder}", fix, MISTAKE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
