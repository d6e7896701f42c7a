"""Imports modules once, then forks a process for each program that a client asks for."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import io
import marshal
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn

STDIN = 0
PACE = Path(__file__).resolve().parents[1] / "lab" / "pace" / "lab_pace.py"
SHOW_STACKS = signal.SIGUSR2
PR_SET_MM, PR_SET_MM_MAP = 35, 14


@dataclass(frozen=True, slots=True)
class Program:
    """The program that a client requests, and its process settings."""

    argv: list[str]
    environ: dict[bytes, bytes]
    client: int
    folder: int
    streams: list[int]


@dataclass(slots=True)
class Forked:
    """A process with two descriptors that report an end: its own, and its client's.

    The file `note` names the process that the client represents.
    """

    pid: int
    end: int
    client: socket.socket
    note: Path


@dataclass
class Server:
    """Forks, and forwards ends in both directions."""

    folder: Path
    listener: socket.socket
    forked: list[Forked] = field(default_factory=list)

    def serve(self) -> Program | None:
        """Return in each forked process with its program; in the server, return None at the end."""
        while True:
            watched: list[int | socket.socket] = [STDIN, self.listener]
            watched += [end for each in self.forked for end in (each.end, each.client)]
            ready, _, _ = select.select(watched, [], [])
            if STDIN in ready:
                self._end_all()
                return None
            for each in [each for each in self.forked if each.end in ready]:
                self._ended(each)
            for each in [each for each in self.forked if each.client in ready]:
                os.kill(each.pid, signal.SIGKILL)  # Its client was killed.
            if self.listener in ready and (program := self._fork()):
                return program

    def _fork(self) -> Program | None:
        connection, _ = self.listener.accept()
        try:
            program = _receive(connection)
        except (OSError, ValueError, EOFError):  # The client was killed during its request.
            connection.close()
            return None
        note = self.folder / str(program.client)
        if (pid := os.fork()) == 0:
            note.write_text(str(os.getpid()), encoding="ascii")
            self._forget_others(connection)
            return program
        for each in (program.folder, *program.streams):
            os.close(each)
        self.forked.append(Forked(pid, os.pidfd_open(pid), connection, note))
        with suppress(OSError):
            connection.sendall(b"%d\n" % pid)
        return None

    def _forget_others(self, connection: socket.socket) -> None:
        for each in (self.listener, connection, *(other.client for other in self.forked)):
            each.close()
        for other in self.forked:
            os.close(other.end)

    def _ended(self, forked: Forked) -> None:
        _, status = os.waitpid(forked.pid, 0)
        with suppress(OSError):
            forked.client.sendall(b"%d\n" % status)
        forked.client.close()
        forked.note.unlink(missing_ok=True)  # It may have been killed before it wrote one.
        os.close(forked.end)
        self.forked.remove(forked)

    def _end_all(self) -> None:
        for each in self.forked:
            os.kill(each.pid, signal.SIGKILL)
        for each in self.forked:
            os.waitpid(each.pid, 0)
        shutil.rmtree(self.folder)


def _receive(connection: socket.socket) -> Program:
    size, (folder, *streams), _, _ = socket.recv_fds(connection, 4, 4)
    with connection.makefile("rb") as stream:
        argv, environ, client = marshal.loads(stream.read(int.from_bytes(size, "big")))
    return Program(argv, environ, client, folder, streams)


def become(program: Program) -> list[str]:
    """Apply the settings of a separate process; return the arguments behind the flags."""
    os.setsid()
    faulthandler.register(SHOW_STACKS, file=2, all_threads=True)
    os.fchdir(program.folder)
    for number, stream in enumerate(program.streams):
        os.dup2(stream, number)
    for each in (program.folder, *program.streams):
        os.close(each)
    os.environb.clear()
    os.environb.update(program.environ)
    show(program.environ)
    sys.executable, *arguments = program.argv
    if arguments[0] == "-u":  # The streams are always unbuffered.
        arguments.pop(0)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    sys.stdout, sys.stderr = (_stream(number) for number in (1, 2))
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return arguments


class MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map`: where the kernel finds the parts of a process, in linux/prctl.h."""

    IN_STAT = (26, 27, 45, 46, 47, 47, 28, 48, 49, 50, 51)
    """The numbers of the first fields in /proc/self/stat; there is none for the heap's end."""
    _fields_ = (
        *((f"{part}_code", ctypes.c_uint64) for part in ("start", "end")),
        *((f"{part}_data", ctypes.c_uint64) for part in ("start", "end")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack")),
        *((f"arg_{part}", ctypes.c_uint64) for part in ("start", "end")),
        *((f"env_{part}", ctypes.c_uint64) for part in ("start", "end")),
        ("auxv", ctypes.c_uint64),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def show(variables: dict[bytes, bytes]) -> None:
    """Let /proc show a program's variables in place of the server's: kit recognises runs by them.

    A kernel without CHECKPOINT_RESTORE refuses this.
    """
    global _shown
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    found = MemoryMap(*(int(fields[number - 3]) for number in MemoryMap.IN_STAT))
    found.exe_fd = -1  # It stays the same.
    # The kernel reads this memory as long as the process lives. A zero follows the last variable.
    _shown = ctypes.create_string_buffer(b"\0".join(b"%b=%b" % each for each in variables.items()))
    found.env_start = ctypes.addressof(_shown)
    found.env_end = found.env_start + len(_shown)
    found.brk = libc.sbrk(0)
    libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(found), ctypes.sizeof(found), 0)


_shown: ctypes.Array[ctypes.c_char]


def _stream(number: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.FileIO(number, "w", closefd=False),
        encoding="utf-8",
        errors="backslashreplace" if number == 2 else "strict",
        write_through=True,
    )


def run(arguments: list[str]) -> None:
    """Run a module, a command or a file as the interpreter would."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def status_of(arguments: list[str]) -> int:
    """Run a program to its end; return its exit status. What else it raises ends this process."""
    try:
        run(arguments)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        return end.code or 0
    return 0


def leave(status: int) -> NoReturn:
    """End as the interpreter does, but do not free its objects.

    They are in pages that are shared with the server: to free them copies each page, a third of a
    second for those of PyTorch.
    """
    threading._shutdown()  # type: ignore[attr-defined] # Waits for threads that are no daemons.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


def warm_up(names: list[str]) -> None:
    """Import modules, of which none starts a thread."""
    for name in names:
        import_module(name)
    if numpy := sys.modules.get("numpy"):
        # Separate processes would not share the state of random numbers.
        os.register_at_fork(after_in_child=numpy.random.seed)
    # Programs end with their own finalizers alone: those of PyTorch's modules take 50 ms.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    gc.collect()
    gc.freeze()


def main() -> None:
    """Serve until standard input ends."""
    folder, *names = sys.argv[1:]
    sys.path.pop(0)
    warm_up(names)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/socket")
    listener.listen(128)
    print("ready", flush=True)
    if program := Server(Path(folder), listener).serve():
        arguments = become(program)
        if "LAB_PACE" in os.environ:  # As PyTorch does in the lab's containers.
            runpy.run_path(str(PACE))["begin"]()
        leave(status_of(arguments))


if __name__ == "__main__":
    main()
