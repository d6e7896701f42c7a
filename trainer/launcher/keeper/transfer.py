"""The bytes of a file, between two keepers."""

import asyncio
import hashlib
import os
from asyncio import StreamReader, StreamWriter
from pathlib import Path
from typing import Any

from trainer.launcher.keeper.folder import PIECE, Versions
from trainer.launcher.keeper.messages import SILENT, TimedOut, drained, receive, send
from trainer.launcher.keeper.output import KeeperError
from trainer.launcher.keeper.version import Content


async def send_file(writer: StreamWriter, message: dict[str, Any], versions: Versions) -> None:
    """Send the file that a message requests; raises OSError, or KeeperError if it is missing."""
    found = [each for each in versions.all() if each.id == message.get("version")]
    index = int(message.get("file", 0))
    if not found or not 0 <= index < len(found[0].files):
        raise KeeperError(f"does not have {message.get('version')}")
    with versions.file(found[0], index).open("rb") as file:
        await send(writer, {"size": found[0].files[index].size})
        while piece := await asyncio.to_thread(file.read, PIECE):
            writer.write(piece)
            await drained(writer)


async def receive_file(reader: StreamReader, host: str, content: Content, target: Path) -> None:
    """Receive a file from another host; raises OSError if it fails or the copy is damaged."""
    answer = await receive(reader)
    if answer.get("size") != content.size:
        raise OSError(f"{host} {answer.get('error') or 'has another size'}")
    hashed, left = hashlib.sha256(), content.size
    try:
        with target.open("xb") as file:
            while left:
                piece = await asyncio.wait_for(reader.read(min(left, PIECE)), SILENT)
                if not piece:
                    raise OSError(f"{host} has ended its connection")
                left -= len(piece)
                hashed.update(piece)
                await asyncio.to_thread(file.write, piece)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
    except TimedOut:
        raise OSError(f"{host} sends nothing for {SILENT:.0f} s") from None
    if hashed.hexdigest() != content.sha256:
        raise OSError(f"{content.path} from {host} is not what was written")
