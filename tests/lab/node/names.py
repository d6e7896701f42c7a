"""The lab's name server: knows the lab's own names and denies all others at once.

Where nobody answers, engines and containers wait: half a minute for an image that is not there.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping

ADDRESS = b"\0\1"
NO_SUCH_NAME = 3


def answer(query: bytes, addresses: Mapping[str, str]) -> bytes:
    """The reply to one query (RFC 1035, section 4)."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("latin-1").lower())
        at += 1 + length
    question = query[12 : at + 5]
    address = addresses.get(".".join(labels))
    record = b""
    if address is not None and question[-4:-2] == ADDRESS:
        # A pointer to the question's name, type and class, one second to live, four bytes.
        record = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(address)
    code = NO_SUCH_NAME if address is None else 0
    counts = b"\0\1" + (b"\0\1" if record else b"\0\0") + bytes(4)
    return query[:2] + bytes([0x85, 0x80 | code]) + counts + question + record


def main() -> None:
    """Answer for ever; the arguments are name=address."""
    addresses = dict(argument.split("=", 1) for argument in sys.argv[1:])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        port.bind(("0.0.0.0", 53))
        while True:
            query, asker = port.recvfrom(4096)
            try:
                port.sendto(answer(query, addresses), asker)
            except (IndexError, OSError):
                continue


if __name__ == "__main__":
    main()
