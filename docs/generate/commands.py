"""The reference of the commands, from click."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import click

from kit.cli import cli

EXITS = """\
## Exit status

| status | meaning |
| --- | --- |
| 0 | The command did its work. |
| 1 | The work failed, `--check` found a difference, or `kit status` found wrong GPUs. |
| 2 | The input has a mistake: a file, an option, an argument. Nothing was changed. |
| 3 | kit itself has a bug. The message names a file to report. |
| 128 + N | Signal N ended kit: 130 after Ctrl-C, 143 after SIGTERM. |
"""
COMMON = 5
"""An option that so many commands have, with the same words, is described once."""


def commands_page() -> str:
    """Return the page of all commands."""
    every = list(_commands(cli, "kit"))
    common = _common([command for _, command in every])
    parts = [
        "# Commands\n",
        "This page lists all commands and their options, as `kit COMMAND --help` prints them.\n",
        EXITS,
        "## Common options\n",
        "Most commands have these options.\n",
        _options(common.values()),
    ]
    for name, command in every:
        parts += _command(name, command, set(common))
    return "\n".join(parts)


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")


def _declared(option: click.Option) -> str:
    value = option.metavar or option.type.name.upper()
    if isinstance(option.type, click.Choice):
        value = ", ".join(option.type.choices)
    return f"{', '.join(sorted(option.opts, key=len))} {'' if option.is_flag else value}".strip()


def _common(every: list[click.Command]) -> dict[str, click.Option]:
    found = [
        option for command in every for option in command.params if isinstance(option, click.Option)
    ]
    number = Counter((_declared(option), option.help) for option in found)
    return {
        _declared(option): option
        for option in found
        if number[_declared(option), option.help] >= COMMON
    }


def _command(name: str, command: click.Command, common: set[str]) -> Iterator[str]:
    # click keeps the help option that it makes first: with the names that the group gives it.
    context = click.Context(command, info_name=name, **cli.context_settings)
    yield f"## {name}\n"
    yield f"    {name} {' '.join(command.collect_usage_pieces(context))}\n"
    yield f"{_paragraphs(command.help or '')}\n"
    options = [each for each in command.params if isinstance(each, click.Option)]
    own = [each for each in options if _declared(each) not in common]
    if own:
        yield _options(own)
    if shared := [each for each in options if each not in own]:
        names = ", ".join(f"`{each.opts[-1]}`" for each in shared)
        yield f"[Common options](#common-options): {names}.\n"


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _options(options: Iterable[click.Option]) -> str:
    rows = ["| option | meaning |", "| --- | --- |"]
    for option in options:
        meaning = " ".join((option.help or "").split()).replace("<", "&lt;")
        if option.show_default and option.default is not None:
            meaning += f" Default: `{option.default}`."
        rows.append(f"| `{_declared(option)}` | {meaning} |")
    return "\n".join(rows) + "\n"
