"""The GPUs of the server, checked at the start and while it runs."""

import asyncio
import re

from trainer.launcher.container import gpu_uuids, list_gpus
from trainer.launcher.errors import LaunchError
from trainer.launcher.output import say

EVERY = 10.0  # Seconds between two checks.


class Gpus:
    """The GPUs that nvidia-smi lists; none if the server has none."""

    def __init__(self) -> None:
        """Log the GPUs as the launcher does; raises LaunchError if one is missing."""
        self._lines = [line.strip() for line in list_gpus("KIT_REPLICAS")]
        self.uuids = tuple(gpu_uuids(self._lines))
        self.lost = ""  # Why the server is not healthy.
        for line in self._lines:
            say(f"sees {line}")

    def described(self) -> list[dict[str, str]]:
        """Model and UUID of each."""
        rows = (re.search(r"(?:GPU \d+: )?(.*?) *\(UUID: (.*)\)", line) for line in self._lines)
        return [{"model": row[1], "uuid": row[2]} for row in rows if row]

    async def watch(self) -> None:
        """Check repeatedly, so that /health answers at once."""
        while self._lines:
            await asyncio.sleep(EVERY)
            try:
                await asyncio.to_thread(list_gpus, "KIT_REPLICAS")
            except LaunchError as error:
                self.lost = str(error)
            else:
                self.lost = ""
