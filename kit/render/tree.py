"""Rendering: a pure function from a lowered plan to a tree of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kit.model import Tree
from kit.render.documents import header, plan_json
from kit.render.templates import Templates
from kit.targets.lowered import VERSION, VERSION_BELOW, Lowered, Output, digest
from kit.workload.settings import Config


@dataclass(frozen=True, slots=True)
class NamedConfig:
    """A file for containers, with a name that contains the hash of its content."""

    key: str
    name: str
    file: str


def render(lowered: Lowered, templates: Templates, programs: Mapping[str, str], merge: str) -> Tree:
    """Render all files of the plan's target.

    `programs` are the texts of the trainer's programs by the names of their files, `merge` that of
    kit/prepare/merge.py, for the program that merges daemon.json on the hosts.

    Raises:
        InputError: A template is wrong.
    """
    whole = header(lowered, *lowered.plan.sources)
    tree = {"plan.json": plan_json(lowered, whole)}
    for workload in lowered.workloads:
        if workload.parts:
            if workload.document:
                tree[workload.document.path] = workload.document.text
            # kit adds no first line: messages refer to the lines of the user's file.
            tree |= {each.path: each.text for each in (*workload.code, *workload.files)}
    mounted = {config.file for each in lowered.outputs for config in each.configs}
    for name in sorted(programs.keys() & mounted):
        tree[name] = f"# {header(lowered)}\n{programs[name]}"
    for each in lowered.outputs:  # Files that containers read come before those that mount them.
        tree[each.path] = _output(lowered, each, templates, tree, merge)
    return tree


def _output(lowered: Lowered, output: Output, templates: Templates, tree: Tree, merge: str) -> str:
    configs = _named(output.stack, output.configs, tree)
    text = templates.render(
        output.template,
        **output.values,
        configs=configs,
        generated=[(stack, _named(stack, each, tree)) for stack, each in output.others],
        header=header(lowered, *output.sources),
        version=VERSION,
        version_below=VERSION_BELOW,
        merge=merge,
    )
    return _versioned(text, (config.name for config in configs if output.hashes_configs))


def _named(stack: str, configs: Iterable[Config], tree: Tree) -> list[NamedConfig]:
    """Return the files of a stack with their names, which contain the hashes of their content."""
    return [
        NamedConfig(each.key, f"{stack}-{each.key}-{digest(tree[each.file])}", each.file)
        for each in configs
    ]


def _versioned(text: str, names: Iterable[str]) -> str:
    """Write the hash of a file and of `names` to its labels, so that a deploy can compare it."""
    names = tuple(names)
    before, mark, after = text.partition(VERSION_BELOW)
    if mark:
        text = f"{before}{digest(''.join([after, *names]))}{after}"
    if VERSION not in text:
        return text
    return text.replace(VERSION, digest("".join([text, *names])))
