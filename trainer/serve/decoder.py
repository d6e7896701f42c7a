"""A process that reads the bodies of requests: python3 -m trainer.serve.decoder, see decoding.py.

A malicious body cannot stop the server: a decoder may be killed at any time, and its memory is
limited. It never imports torch.

    standard input    frames: a task (JSON), then the body
    standard output   frames: a result (JSON), then float32 [N, C, S, S] (or int64, of a
                      custom model); or a refusal, then nothing

A frame has the lengths of its two parts, 32 bits each, then the parts.
"""

import json
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

from trainer.serve.inputs import Limits, read_samples
from trainer.serve.kind import Kind
from trainer.serve.refusal import Refusal

LENGTHS = struct.Struct(">II")
SECONDS = 5  # For one body.
MEMORY = 512 * 2**20  # Bytes; a photograph of 12 megapixels takes a fifth.


def main() -> None:
    """Read bodies until standard input ends."""
    # After these signals the server still answers accepted requests, then closes the pipe.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while head := source.read(LENGTHS.size):
        task, body = (source.read(length) for length in LENGTHS.unpack(head))
        # The server's deadline is shorter; this one is for a decoder whose server was killed.
        signal.alarm(2 * SECONDS)
        answer(target, json.loads(task), body)
        signal.alarm(0)


def answer(target: BinaryIO, task: dict[str, Any], body: bytes) -> None:
    """Read one body and write the result."""
    result: dict[str, Any]
    payload = b""
    try:
        kind, limits = Kind.parse(task["kind"]), Limits(*task["limits"])
        values, top = read_samples(body, task["type"], kind, limits)
        result, payload = {"count": len(values), "top": top}, values.tobytes()
    except Refusal as refusal:
        result = {"status": refusal.status, "error": refusal.error, "fix": refusal.fix}
    except MemoryError:
        fix = "send less at a time"
        result = {"status": 413, "error": "the request needs too much memory", "fix": fix}
    written = json.dumps(result).encode()
    target.write(LENGTHS.pack(len(written), len(payload)) + written + payload)
    target.flush()


if __name__ == "__main__":
    main()
