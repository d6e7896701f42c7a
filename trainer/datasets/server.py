"""The web server of the store.

python -m trainer.datasets.server --store /store --port 8090
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import uvicorn

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
        listener = listen(options.address, options.port)
    except DataSetError as error:
        say_error(f"data server: error: {error}")
        return error.code
    say(f"data server: offers {options.store} on port {listener.getsockname()[1]}")
    uvicorn.Server(make_config(make_app([options.store], data=True))).run(sockets=[listener])
    return 0


def require_folder(folder: Path) -> None:
    """Raise DataSetError if a folder does not exist."""
    if not folder.is_dir():
        fix = "mount the volume of the store there"
        raise DataSetError(f"--store: there is no folder {folder}", fix, MISTAKE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
