"""The start of the keeper."""

import asyncio
import json
import os
import signal
from pathlib import Path

from trainer.launcher.keeper.files import Files
from trainer.launcher.keeper.folder import Versions
from trainer.launcher.keeper.keeper import Keeper


def main() -> None:
    """Keep the files that the environment names."""
    for number in (signal.SIGINT, signal.SIGTERM):  # The agent ends first, then this process.
        signal.signal(number, signal.SIG_IGN)
    paths, host = json.loads(os.environ["KIT_FILES"]), os.environ["KIT_HOST"]
    folder = Path(os.environ["KIT_CHECKPOINTS"], "versions", host)
    versions = Versions(folder, paths, int(os.environ["KIT_KEEP"]))

    async def keep() -> None:
        keeper = Keeper(host, os.environ["KIT_FILES_AT"], Files(paths), versions)
        await keeper.run(os.environ["KIT_KEEPER"])

    asyncio.run(keep())


if __name__ == "__main__":
    main()
