"""The processes that read the bodies of requests (decoder.py), with deadlines.

Neither json.loads nor Pillow can be interrupted, and a client can make both hold the global
interpreter lock for seconds. The processes answer with numbers and JSON, not with pickles, so a
compromised process cannot run code in the server.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Any

import numpy as np

from trainer.serve.decoder import LENGTHS, SECONDS
from trainer.serve.inputs import Limits
from trainer.serve.kind import Array, Kind
from trainer.serve.refusal import Refusal

FEWEST, MOST = 2, 8  # Processes.
CHUNK = 2**18  # Bytes that are written at a time.
# No other variables: the token may be among them.
INHERITED = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG")
GONE = 0.5  # Seconds to finish after the client has left: a new process costs about as much.


class Decoder:
    """A decoder process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> "Decoder":
        """Start a process; raises OSError."""
        environ = {name: os.environ[name] for name in INHERITED if name in os.environ}
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "trainer.serve.decoder",
                stdin=PIPE,
                stdout=PIPE,
                env=environ | {"OPENBLAS_NUM_THREADS": "1"},
            )
        )

    async def read(self, task: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Send a body to the process; return the result. Raises OSError or EOFError if it died."""
        source, target = self._process.stdout, self._process.stdin
        assert source
        assert target
        written = json.dumps(task).encode()
        target.write(LENGTHS.pack(len(written), len(body)) + written)
        for start in range(0, len(body), CHUNK):
            target.write(body[start : start + CHUNK])
            await target.drain()
        lengths = LENGTHS.unpack(await source.readexactly(LENGTHS.size))
        result, payload = [await source.readexactly(length) for length in lengths]
        return json.loads(result), payload

    @property
    def ended(self) -> bool:
        """Whether the process has ended, for example because the kernel killed it for memory."""
        return self._process.returncode is not None

    def kill(self) -> None:
        """Kill the process."""
        if self._process.stdin:
            self._process.stdin.close()
        with suppress(ProcessLookupError):
            self._process.kill()


class Decoders:
    """A few decoders; requests wait for them in the order of arrival."""

    def __init__(self) -> None:
        count = min(MOST, max(FEWEST, len(os.sched_getaffinity(0))))
        # The last used process is used first: others need not be started.
        self._free: asyncio.LifoQueue[Decoder | None] = asyncio.LifoQueue()
        for _ in range(count):
            self._free.put_nowait(None)
        self._working = set[asyncio.Task[tuple[dict[str, Any], bytes]]]()

    async def read(
        self, body: bytes, content_type: str, kind: Kind, limits: Limits
    ) -> tuple[Array, int]:
        """Read samples, [N, C, S, S] or [N, ...], and the number of classes; raises Refusal."""
        task = {"type": content_type, "kind": kind.described(), "limits": limits}
        decoder = await self._free.get()
        work = asyncio.create_task(self._work(decoder, task, body))
        self._working.add(work)
        work.add_done_callback(self._working.discard)
        try:
            result, payload = await asyncio.shield(work)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(GONE, work.cancel)
            raise
        if "error" in result:
            raise Refusal(result["status"], result["error"], result["fix"])
        kind_of_number = np.int64 if kind.integers else np.float32
        values = np.frombuffer(payload, kind_of_number).reshape(result["count"], *kind.shape)
        return values, result["top"]

    async def _work(
        self, decoder: Decoder | None, task: dict[str, Any], body: bytes
    ) -> tuple[dict[str, Any], bytes]:
        """Read a body with a decoder, or start one; then free the decoder, or kill it."""
        unharmed = False
        try:
            async with asyncio.timeout(SECONDS):
                if decoder and decoder.ended:
                    decoder.kill()
                    decoder = None
                decoder = decoder or await Decoder.start()
                result = await decoder.read(task, body)
            unharmed = True
        except TimeoutError as error:
            what = f"the request takes more than {SECONDS} s to read"
            raise Refusal(413, what, "send a smaller or simpler one") from error
        except (OSError, EOFError) as error:
            raise Refusal(503, "the request could not be read", "try again later") from error
        finally:
            if decoder and not unharmed:
                decoder.kill()
            self._free.put_nowait(decoder if unharmed else None)
        return result

    def close(self) -> None:
        """End all processes."""
        for work in self._working:
            work.cancel()
        while not self._free.empty():
            if decoder := self._free.get_nowait():
                decoder.kill()
