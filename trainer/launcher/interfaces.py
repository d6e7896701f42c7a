"""This host's addresses, with their interfaces."""

import ctypes
import socket

# Offset and length of the number in a socket address (netinet/in.h).
NUMBERS = {int(socket.AF_INET): (4, 4), int(socket.AF_INET6): (8, 16)}


class InterfaceAddress(ctypes.Structure):
    """One address of one interface: an element of getifaddrs(3)'s linked list."""


InterfaceAddress._fields_ = [
    ("next", ctypes.POINTER(InterfaceAddress)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("other_end", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def interface_addresses() -> dict[str, str]:
    """All addresses of this host, each with its interface, in the order of getifaddrs(3).

    NCCL and gloo find interfaces by the same call and the same names, and use the first address of
    the chosen one.
    """
    libc, first = ctypes.CDLL(None), ctypes.POINTER(InterfaceAddress)()
    found: dict[str, str] = {}
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        return found
    entry = first
    while entry:
        one = entry.contents
        family = ctypes.c_ushort.from_address(one.address).value if one.address else 0
        if family in NUMBERS:
            start, length = NUMBERS[family]
            number = ctypes.string_at(one.address + start, length)
            found.setdefault(socket.inet_ntop(family, number), one.name.decode())
        entry = one.next
    libc.freeifaddrs(first)
    return found
