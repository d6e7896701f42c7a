"""The settings of a container as values: variables, ports, files, health, restarts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kit.errors import Loc


class Word(str):
    """A value from kit that YAML reads as text without quotes."""

    __slots__ = ()


class Symbol(Enum):
    """A value that each target writes in its own syntax.

    All other values are final: a target passes the makers of parts the addresses at which hosts
    meet. References for them would need a resolver in each target.
    """

    HOST = "the name of the host that the container runs on"
    GPUS = "the GPUs that the container is given"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the environment.

    `why` is a comment in the rendered file. `own`: its value differs between groups of hosts.
    """

    name: str
    value: str | Symbol
    why: str = ""
    own: bool = False


Environment = tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A command that fails when the container cannot work. Times are in seconds.

    `start_interval`: Docker reports a task as running after its first probe. With the usual
    interval this takes 30 s, and every deploy waits for it.
    """

    command: tuple[str, ...]
    interval: int = 30
    timeout: int = 20
    retries: int = 3
    start_period: int = 120
    start_interval: int = 2


@dataclass(frozen=True, slots=True)
class Port:
    """A port of the host's network. The container listens on `inside`, or on the same number.

    `loc` is its place in the user's file. `public`: clients outside the containers' network
    reach it.
    """

    number: int
    loc: Loc
    public: bool
    inside: int | None = None

    @property
    def fixed(self) -> bool:
        """Whether no key of the file sets it."""
        return not str(self.loc[-1]).endswith("port")

    def written(self, number: object = "…") -> str:
        """Return the port's key as the file has it, with another number."""
        section, key = str(self.loc[0]), self.loc[-1]
        return f"{section}: {{{key}: {number}}}" if self.loc[1:] else f"{section}: {number}"


@dataclass(frozen=True, slots=True)
class Config:
    """A file of the tree, mounted into a container at `target`."""

    key: str
    file: str
    target: str


class Net(Enum):
    """The network of a container."""

    CONTAINERS = "that of the target's containers, or the hosts' own where the plan says so"
    HOST = "the host's own, under every target"
    ALONE = "a network that reaches no other container"


@dataclass(frozen=True, slots=True)
class Restart:
    """When an ended container is started again: `always`, or after a failure, `most` times an hour.

    `delay` is in seconds; Compose has its own, which grows.
    """

    always: bool = True
    most: int = 0
    delay: int = 2


@dataclass(frozen=True, slots=True)
class Update:
    """How Swarm replaces tasks: the old one always ends first, as it holds a GPU, port or volume.

    `at_once`: all tasks together, not one after the other. `pause`: a failure ends the update.
    """

    at_once: bool = False
    pause: bool = False
