"""Connects standard input and output with a port: `python3 relay.py PORT`, in a container.

`kit forward` passes this text to `python3 -c`. It uses only the standard library and Python 3.6.
"""

import os
import socket
import sys
import threading

BLOCK = 65536


def main() -> int:
    """Copy both ways until the port's side ends; the input's end is passed on."""
    try:
        port = socket.create_connection(("localhost", int(sys.argv[1])))
    except OSError as error:
        sys.stderr.write(error.strerror or str(error))
        return 1
    threading.Thread(target=send, args=(port,), daemon=True).start()
    while True:
        block = port.recv(BLOCK)
        if not block:
            return 0
        while block:
            block = block[os.write(1, block) :]


def send(port: socket.socket) -> None:
    """Copy the input to the port."""
    while True:
        block = os.read(0, BLOCK)
        if not block:
            port.shutdown(socket.SHUT_WR)
            return
        port.sendall(block)


if __name__ == "__main__":
    sys.exit(main())
