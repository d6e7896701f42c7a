"""Runs in a container with GPUs: writes and reads memory of each; a line of JSON for each.

It is sent there as text and needs only the standard library of Python 3.10 and CUDA's driver, which
the NVIDIA runtime mounts. Each GPU has a separate process: a lost GPU makes CUDA fail for all.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

DRIVER = "libcuda.so.1"
WORDS = 2**18
"""32-bit words that a kernel of the driver fills: 1 MiB."""
PATTERN = 0x6B697421
PATIENCE = 60.0
"""Seconds for all GPUs; a GPU without persistence mode takes some to start."""


def compute(device: str) -> str:
    """Return the error of the first use of a GPU, or "". Later calls in a process see the same."""
    os.environ["CUDA_VISIBLE_DEVICES"] = device
    try:
        _fill(ctypes.CDLL(DRIVER))
    except (OSError, AttributeError, RuntimeError) as error:
        return str(error)
    return ""


def _fill(cuda: ctypes.CDLL) -> None:
    number, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    size = ctypes.c_size_t(4 * WORDS)
    _call(cuda, "cuInit", ctypes.c_uint(0))
    _call(cuda, "cuDeviceGet", ctypes.byref(number), ctypes.c_int(0))
    _call(cuda, "cuCtxCreate_v2", ctypes.byref(context), ctypes.c_uint(0), number)
    _call(cuda, "cuMemAlloc_v2", ctypes.byref(memory), size)
    _call(cuda, "cuMemsetD32_v2", memory, ctypes.c_uint(PATTERN), ctypes.c_size_t(WORDS))
    read = (ctypes.c_uint32 * WORDS)()
    _call(cuda, "cuMemcpyDtoH_v2", read, memory, size)
    wrong = sum(word != PATTERN for word in read)
    if wrong:
        raise RuntimeError(f"{wrong} of {WORDS} words of its memory are wrong")


def _call(cuda: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Call a function of CUDA's driver (its API is in cuda.h); 0 is success."""
    status = getattr(cuda, name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(ctypes.c_int(status), ctypes.byref(text))
        message = text.value.decode() if text.value else "unknown error"
        raise RuntimeError(f"{name}: {message} (CUDA error {status})")


def _start(device: str) -> tuple[int, int]:
    """Start a process for a GPU; return its ID and the pipe with its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, compute(device).encode())
        os._exit(0)
    os.close(writer)
    return child, reader


def _wait(child: int, reader: int, deadline: float) -> str:
    """Return the error of a process; one that hangs in the driver cannot be ended."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            message = os.read(reader, 65536).decode()
            return message or (f"the driver ended the process (status {status})" if status else "")
        if time.monotonic() > deadline:
            return f"no answer within {PATIENCE:.0f} s"
        time.sleep(0.05)


def main() -> None:
    """Try each GPU that the arguments name."""
    started = {device: _start(device) for device in sys.argv[1:]}
    deadline = time.monotonic() + PATIENCE
    for device, process in started.items():
        answer = {"device": device, "error": _wait(*process, deadline)}
        print(f"@doctor {json.dumps(answer)}", flush=True)  # noqa: T201 (kit reads it)


if __name__ == "__main__":
    main()
