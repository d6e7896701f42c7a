"""Lets the server run a program, and behaves like that program's process.

Thousands of these start in a run of all tests: it imports only modules in C, half of the time.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import posix
import sys

FORWARDED = {getattr(_signal, "SIG" + name) for name in ("TERM", "INT", "HUP", "QUIT", "USR1")}


def number(server: _socket.socket) -> int:
    """Return the next line, a number."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := server.recv(1)):
            raise EOFError("the warm Python has ended")
        line += byte
    return int(line)


_signal.pthread_sigmask(_signal.SIG_BLOCK, FORWARDED)
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect(sys.argv[0].rpartition("/")[0] + "/socket")
ask = marshal.dumps((sys.argv, posix.environ, posix.getpid()))
folder = posix.open(".", posix.O_RDONLY | posix.O_DIRECTORY)
passed = b"".join(each.to_bytes(4, sys.byteorder) for each in (folder, 0, 1, 2))
ancillary = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, passed)
server.sendmsg([len(ask).to_bytes(4, "big")], [ancillary])
server.sendall(ask)
program = number(server)


def forward(signal: int, _: object) -> None:
    try:
        posix.kill(program, signal)
    except ProcessLookupError:  # Its status is on its way.
        return


for each in FORWARDED:
    _signal.signal(each, forward)
_signal.pthread_sigmask(_signal.SIG_UNBLOCK, FORWARDED)
status = number(server)

if posix.WIFSIGNALED(status):
    if posix.WTERMSIG(status) in FORWARDED:
        _signal.signal(posix.WTERMSIG(status), _signal.SIG_DFL)
    posix.kill(posix.getpid(), posix.WTERMSIG(status))
posix._exit(posix.waitstatus_to_exitcode(status))
