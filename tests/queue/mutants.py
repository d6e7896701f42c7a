"""Changes of the queue that break one rule each: a check has to find every one of them.

`python -m tests.queue.mutants` runs all checks on all of them, until one finds it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType

TESTS = ("tests.queue.test_rules", "tests.queue.test_queue")
FRESH = ("kit.queue", "tests.queue.simulator", *TESTS)
SEEDS = range(40)
"""The pools of chance that are tried."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule, and the text of a module whose change breaks it."""

    rule: str
    module: str
    old: str
    new: str


MUTANTS = (
    Mutant("a GPU is given once", "decide", "if gpu not in gpus]", "]"),
    Mutant(
        "a GPU has one owner", "moves", " and not any((host, gpu) in taken for gpu in gpus)", ""
    ),
    Mutant("a group begins whole", "moves", "< job.wish.least:", "< 1:"),
    Mutant(
        "a group gets its least", "decide", "if len(chosen) < job.wish.least:", "if not chosen:"
    ),
    Mutant("a job gets its most at most", "decide", "if number >= job.wish.most:", "if False:"),
    Mutant(
        "a later job may begin early",
        "decide",
        "if ledger.grant(job):",
        "if not waits and ledger.grant(job):",
    ),
    Mutant("an early job gives way", "order", "is not None and not job.early", "is not None"),
    Mutant("an early job is known", "decide", "early.add(job.name)", "pass"),
    Mutant("a host stays for a minute", "decide", "since >= STILL", "since >= 0"),
    Mutant("a young job is not stopped", "decide", "if job.name in self._young:", "if False:"),
    Mutant(
        "a young host does not grow",
        "decide",
        "and not self._old(had.since):\n            #",
        "and False:\n            #",
    ),
    Mutant("short jobs delay no large one", "decide", "if self._young:", "if False:"),
    Mutant("the priority comes first", "order", "return -level(job, pool.now)", "return 0"),
    Mutant("who waits rises", "order", "STEP * (waited // AGE)", "0"),
    Mutant("who has risen keeps it", "order", "max(job.level, job.priority)", "job.priority"),
    Mutant("who used less is first", "order", "used[job.owner] - stays", "0"),
    Mutant("shares are weighed", "order", ".share / max", " .share ** 0 / max"),
    Mutant(
        "who has begun is ahead",
        "order",
        "used[job.owner] - stays, not stays",
        "used[job.owner], True",
    ),
    Mutant("small differences stop nobody", "order", "int(pool.used", "float(pool.used"),
    Mutant("the rest is shared", "decide", "held / share, used", "0, used"),
    Mutant("an odd GPU goes round", "decide", "held += number * 3 / 4", "pass"),
    Mutant("equals do not take turns", "decide", "held -= number / 2", "pass"),
    Mutant(
        "a person has a limit", "decide", "most is not None and self.owned", "False and self.owned"
    ),
    Mutant("only what is lent is used", "decide", "if each.usable}", "if each.there}"),
    Mutant("a lost host is not used", "decide", "if each.usable}", "if each.open}"),
    Mutant(
        "an owner's host is left",
        "moves",
        "if not _same(had, wanted.get(host)):",
        "if host in wanted:",
    ),
    Mutant("shrink before a stop", "decide", "return True, -self", "return False, -self"),
    Mutant(
        "the lowest priority first",
        "decide",
        "return False, job.priority, -left",
        "return False, 0, -left",
    ),
    Mutant("the largest surplus first", "decide", "job.priority, -left", "job.priority, left"),
    Mutant("the last one stops", "decide", "True, -self.places", "True, self.places"),
    Mutant("what is free comes first", "decide", "return not mine, worst", "return not mine, NONE"),
    Mutant("a job stays where it is", "decide", "return not mine, worst", "return False, worst"),
    Mutant(
        "only the hosts of the wish", "decide", "if self._free[host.name] and allowed and", "if"
    ),
    Mutant(
        "who cannot be served is alike",
        "decide",
        "alike = (wish.each, wish.hosts)",
        "alike = (1, frozenset())",
    ),
    Mutant(
        "a job begins again at home",
        "decide",
        "if anchors and all(unit.host not in anchors for unit in chosen):",
        "if False:",
    ),
    Mutant("a job comes back", "decide", "not job.keeps and host in job.home", "False"),
    Mutant("at home first", "moves", "if up or not job.anchors:", "if True:"),
    Mutant(
        "a job that moves takes its checkpoint along",
        "moves",
        "if job.anchors and not job.anchors",
        "if False and not job.anchors",
    ),
    Mutant("a checkpoint needs a while", "turn", "now - had.since >= STILL", "True"),
    Mutant("a reason is given", "reasons", '"""Return why a job waits."""', 'return ""'),
)


@contextmanager
def mutated(mutant: Mutant | None) -> Iterator[None]:
    """Import the queue and its checks anew, with a mutant."""
    saved = {name: module for name, module in sys.modules.items() if name.startswith(FRESH)}
    for name in saved:
        del sys.modules[name]
    try:
        if mutant:
            _load(mutant)
        yield
    finally:
        for name in [name for name in sys.modules if name.startswith(FRESH)]:
            del sys.modules[name]
        sys.modules.update(saved)


def _load(mutant: Mutant) -> None:
    name = f"kit.queue.{mutant.module}"
    spec = importlib.util.find_spec(name)
    assert spec
    assert spec.loader
    source = inspect.getsource(importlib.import_module(name))
    for loaded in [each for each in sys.modules if each.startswith("kit.queue.")]:
        del sys.modules[loaded]
    assert source.count(mutant.old) == 1, f"{mutant.rule}: the text is not there once"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(source.replace(mutant.old, mutant.new), spec.origin or name, "exec"), vars(module))


def checks() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the tests without parameters, then pools of chance."""
    for name in TESTS:
        module: ModuleType = importlib.import_module(name)
        for test, function in vars(module).items():
            if test.startswith("test_") and not inspect.signature(function).parameters:
                yield test, function
    simulator = importlib.import_module("tests.queue.simulator")
    for seed in SEEDS:
        yield f"pool {seed}", partial(simulator.run, seed)


def found_by(mutant: Mutant | None, only: str = "") -> str:
    """Return the first check that finds a mutant, or nothing."""
    with mutated(mutant):
        for name, check in checks():
            if only in name:
                try:
                    check()
                except Exception as error:  # a mutant may fail in any way
                    return f"{name}: {error or type(error).__name__}".split("\n")[0]
    return ""


def main() -> None:
    if found := found_by(None):
        sys.exit(f"the queue itself fails in {found}")
    alive = 0
    for mutant in MUTANTS:
        begin = time.monotonic()
        found = found_by(mutant)
        alive += not found
        seconds = time.monotonic() - begin
        print(f"{mutant.rule:32} {seconds:5.1f} s  {found[:90] or 'NOT FOUND'}", flush=True)
    print(f"{len(MUTANTS) - alive} of {len(MUTANTS)} mutants found")
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
