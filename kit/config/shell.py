"""The conversion of command lines that start a training by hand into the keys of a job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kit.config.flow import line
from kit.config.variables import RESERVED
from trainer.contract.script import LAUNCHERS as MODULES
from trainer.contract.script import SCRIPTS, foreign_start

PYTHON = re.compile(r"(i?python|pypy)[0-9.]*t?(\.exe)?")
LAUNCHERS = frozenset(
    {
        *("torchrun", "torchx", "accelerate", "accelerate-launch", "deepspeed", "colossalai"),
        *("horovodrun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun", "srun"),
        *("sbatch", "salloc", "jsrun", "aprun", "ibrun", "flux", "composer", "lightning", "fabric"),
        *("baguarun", "ray", "msrun", "tune"),
    }
)
"""Programs that start the processes of a training."""
_OF_MODULES = LAUNCHERS - {"srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "jsrun"} | {
    *("uv", "uvx", "coverage", "kernprof", "nsys", "")
}
"""Programs whose option -m names a module; the others bind processes and memory by it."""
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "fish"})
_RUNNERS = frozenset(
    {
        *("env", "uv", "uvx", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi", "conda", "mamba"),
        *("micromamba", "nohup", "time", "nice", "ionice", "exec", "sudo", "timeout", "numactl"),
        *("taskset", "stdbuf", "setsid", "xvfb-run", "tini", "dumb-init", "docker", "podman"),
        *("singularity", "apptainer", "enroot", "nsys", "ncu", "nvprof", "py-spy", "coverage"),
        *("kernprof", "strace", "make", "screen", "tmux", "pytest", "jupyter", "notebook", "cd"),
    }
)
"""Programs that run another one."""
_SILENT = frozenset(
    {
        *("set", "source", ".", "conda", "mamba", "module", "ml", "ulimit", "wait", "exit", "echo"),
        *("true", "hostname", "date", "nvidia-smi", "sleep", "trap", "shopt", "umask", "unset"),
    }
)
"""Commands of scripts that have no effect, or no use, in `setup`."""
_SET = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_GLUED = re.compile(r"--?[A-Za-z][\w.-]*\s+\S", re.DOTALL)
_REST = re.compile(r"\||&|\d?>>?.*|&>.*")  # A pipe, a background process, a redirection.
_CHAIN = frozenset({"&&", "||", ";"})
SYNTAX = frozenset({"&&", "||", "2>&1", ">>", "&>"})
"""Words that only a shell understands, and that are not arguments of a script."""


@dataclass(frozen=True)
class ParsedCommand:
    """A command line in the keys of a job."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    setup: tuple[str, ...] = ()
    working_dir: str = ""

    def lines(self) -> str:
        """Return the lines to write, as code."""
        # A job does not expand shell variables.
        plain = {name: text for name, text in self.environment if not {"$", "`"} & {*text}}
        own = {name: text for name, text in plain.items() if name not in RESERVED}
        own = {name: text for name, text in own.items() if not name.startswith("KIT_")}
        nccl = {name: text for name, text in own.items() if name.startswith("NCCL_")}
        keys: dict[str, object] = {"command": self.command, "nccl": nccl}
        keys["environment"] = {name: own[name] for name in own if name not in nccl}
        keys |= {"setup": self.setup, "working_dir": self.working_dir}
        *first, last = (line(name, value) for name, value in keys.items() if value)
        return f"{', '.join(first)} and {last}" if first else last


def split(text: str) -> list[str]:
    """Split a text into words as a shell does."""
    try:
        return shlex.split(text)
    except ValueError:  # A quote is not closed.
        return text.split()


def program(word: str) -> str:
    """Return the name of a program without its folders."""
    return word.rpartition("/")[2]


def separated(command: Sequence[str]) -> list[str]:
    """Split words that hold several: a whole line at the beginning, an option with its value."""
    first, *others = command
    words = split(first)
    spaced = first != first.strip() or len(words) > 1
    rest = (split(word) if _GLUED.match(word) and word[:2] == "--" else [word] for word in others)
    return [
        *(words if spaced and _is_line(words) else [first]),
        *(word for each in rest for word in each),
    ]


def _is_line(words: Sequence[str]) -> bool:
    """Whether the words of one word are a line: names of files may have spaces too."""
    if len(words) < 2:
        return bool(words)
    name = program(words[0])
    known = name in LAUNCHERS | _RUNNERS | SHELLS or PYTHON.fullmatch(name)
    begins = words[0][0] in "-$" or _SET.fullmatch(words[0]) or name.endswith(SCRIPTS)
    return bool(known or begins)


def read_line(text: str) -> ParsedCommand | None:
    """Read one or several lines of a shell; None if no script is recognized in them."""
    parts = list(_parts(text))
    scripts = {
        index: parsed for index, (words, _) in enumerate(parts) if (parsed := read_words(words))
    }
    if not scripts:
        return None
    # The script is the one that a launcher starts, or the last one.
    launched = [at for at in scripts if any(program(word) in LAUNCHERS for word in parts[at][0])]
    chosen = [*scripts, *launched][-1]
    before, parsed = ParsedCommand(()), scripts[chosen]
    for words, rest in parts[:chosen]:
        before = _prepared(before, words, rest)
    return ParsedCommand(
        parsed.command,
        (*before.environment, *parsed.environment),
        (*before.setup, *parsed.setup),
        parsed.working_dir or before.working_dir,
    )


def _prepared(before: ParsedCommand, words: list[str], rest: list[str]) -> ParsedCommand:
    """Add a command that comes before the script."""
    sets = [_SET.fullmatch(word) for word in words if word != "export"]
    variables = tuple((each[1], each[2]) for each in sets if each)
    if variables and len(variables) == len(sets):
        return replace(before, environment=(*before.environment, *variables))
    if words[0] == "cd":
        folder = "".join(words[1:2])
        return replace(before, working_dir=folder) if folder.startswith("/") else before
    if words[0] in _SILENT:
        return before
    return replace(before, setup=(*before.setup, _joined([*words, *rest])))


def _joined(words: Sequence[str]) -> str:
    return " ".join(word if word and not re.search(r"\s", word) else repr(word) for word in words)


def _parts(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the commands of a text: the words of each, and the words that only a shell reads."""
    for row in text.replace("\\\n", " ").splitlines():
        words, rest = list[str](), list[str]()
        for word in split(row) if not row.lstrip().startswith("#") else []:
            ends = word in _CHAIN or word.endswith(";")
            if word not in _CHAIN:
                plain = not rest and not _REST.fullmatch(word)
                (words if plain else rest).append(word.rstrip(";") if ends else word)
            if ends and words:
                yield words, rest
            if ends:
                words, rest = [], []
        if words:
            yield words, rest


def read_words(words: Sequence[str]) -> ParsedCommand | None:
    """Read the words of one command; None if no script is recognized in it."""
    words = list(words)
    environment = list[tuple[str, str]]()
    while words and (variable := _SET.fullmatch(words[0])):
        environment.append((variable[1], variable[2]))
        words = words[1:]
    parsed = _started(words) if words else None
    return replace(parsed, environment=(*environment, *parsed.environment)) if parsed else None


def _started(words: list[str]) -> ParsedCommand | None:
    first, name = words[0], program(words[0])
    if not foreign_start(words):
        return ParsedCommand(tuple(words))
    if first == "-m":  # A launcher, or the file of a module.
        return _run_by(words[2:]) if "".join(words[1:2]) in MODULES else _run_by(words[1:])
    if PYTHON.fullmatch(name):
        return _run_by_python(words[1:])
    if name in SHELLS:
        options = [index for index, word in enumerate(words) if re.fullmatch(r"-\w*c", word)]
        return read_line("".join(words[options[0] + 1 : options[0] + 2])) if options else None
    if name == "env":
        rest = words[1:]
        while rest and rest[0].startswith("-"):
            rest = rest[2:] if rest[0] in {"-u", "-C"} else rest[1:]
        return read_words(rest)
    return _run_by(words) if first.startswith("-") else _run_by(words[1:], name)


def _run_by(words: Sequence[str], name: str = "") -> ParsedCommand | None:
    """Find the script behind the options of the program `name`; any options are accepted."""
    for index, word in enumerate(words):
        rest, inner = list(words[index:]), program(word)
        if word in {"-m", "--module"} and name in _OF_MODULES:
            parsed = _started(["-m", *rest[1:]]) if not foreign_start(["-m", *rest[1:]]) else None
        elif inner.lower().endswith(SCRIPTS):
            parsed = ParsedCommand(tuple(rest)) if not foreign_start(rest) else None
        elif inner in LAUNCHERS | SHELLS | {"env"} or PYTHON.fullmatch(inner):
            parsed = _started(rest)
        else:
            parsed = None
        if parsed:
            return parsed
    return None


def _run_by_python(words: list[str]) -> ParsedCommand | None:
    while words and words[0].startswith("-"):
        option = words[0]
        if option.startswith("-m"):
            return _started(["-m", *([option[2:]] if option[2:] else []), *words[1:]])
        if option.startswith("-c") or option == "-":
            return None
        words = words[2:] if option in {"-W", "-X"} else words[1:]
    if not words:
        return None
    if "/" not in words[0] and "." not in words[0] and program(words[0]) not in LAUNCHERS:
        return ParsedCommand((f"./{words[0]}", *words[1:]))
    return _started(words)
