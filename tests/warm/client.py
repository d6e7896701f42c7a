"""Lets the server run a program, and behaves like that program's process."""

import contextlib
import marshal
import os
import signal
import socket
import sys

FORWARDED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1}

signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[0].rpartition("/")[0] + "/socket")
    ask = marshal.dumps((sys.argv, dict(os.environb), os.getpid()))
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    socket.send_fds(server, [len(ask).to_bytes(4, "big")], [folder, 0, 1, 2])
    server.sendall(ask)
    answers = server.makefile("rb")
    program = int(answers.readline())

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # Its status is on its way.
            os.kill(program, number)

    for each in FORWARDED:
        signal.signal(each, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    status = int(answers.readline())

if os.WIFSIGNALED(status):
    if os.WTERMSIG(status) in FORWARDED:
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.waitstatus_to_exitcode(status))
