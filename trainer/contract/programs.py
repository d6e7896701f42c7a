"""The programs that kit runs in images without the trainer: one file each, joined from modules.

A module imports only from those before it, and by `from … import …`. No name is defined in two
modules of a program. So one file with the text of all modules is equivalent; tests check these
rules. A zip archive of the modules would not be readable in the rendered files and in their diffs.
"""

import ast
import re
import textwrap
from collections.abc import Callable

PROGRAMS = {
    "launch.py": (
        *("launcher/__init__.py", "contract/mark.py", "contract/script.py", "contract/code.py"),
        *("contract/notify.py", "contract/allocation.py", "contract/exits.py"),
        *("launcher/output.py", "launcher/errors.py", "launcher/program.py"),
        *("launcher/settings.py", "launcher/process.py", "launcher/waiting.py"),
        "launcher/container.py",
        *("launcher/disk.py", "launcher/data_sets.py", "launcher/workspace.py"),
        *("launcher/interfaces.py", "launcher/network.py", "launcher/checks.py"),
        *("launcher/failures.py", "group/messages.py", "group/spent.py", "group/notices.py"),
        *("group/knowledge.py", "group/decisions.py", "group/server.py", "launcher/rounds.py"),
        *("launcher/script_files.py", "launcher/metrics.py", "launcher/worker.py"),
        *("launcher/connections.py", "launcher/silence.py", "launcher/torchrun.py"),
        *("launcher/tensorflow.py", "launcher/last_failure.py", "launcher/limits.py"),
        *("launcher/host_agent.py", "launcher/agent.py", "launcher/run.py", "launcher/tell.py"),
        *("launcher/session/__init__.py", "launcher/session/deadline.py"),
        *("launcher/session/use.py", "launcher/session/access.py"),
        *("launcher/session/jupyter.py", "launcher/session/hold.py"),
        *("launcher/start.py", "launcher/receivers.py", "launcher/webhook.py"),
        *("launcher/sender.py", "launcher/courier.py", "launcher/coordinator.py"),
        "launcher/main.py",
    ),
    "keeper.py": (
        *("launcher/keeper/__init__.py", "contract/mark.py", "launcher/output.py"),
        *("launcher/keeper/output.py", "launcher/keeper/version.py", "launcher/keeper/folder.py"),
        *("launcher/keeper/files.py", "launcher/keeper/messages.py"),
        *("launcher/keeper/transfer.py", "launcher/keeper/meeting.py"),
        *("launcher/keeper/keeper.py", "launcher/keeper/main.py"),
    ),
    "probe.py": (
        *("bench/__init__.py", "launcher/interfaces.py", "bench/links.py", "bench/probe.py"),
    ),
}
"""The modules of each program, below the trainer's folder. The docstring of the first describes the
program, and its code runs before that of others."""
IMPORTS = re.compile(r"((import |from | {4}|\)).*\n|\n+(?=import |from ))*")


def join(program: str, read: Callable[[str], str]) -> str:
    """Join the modules of a program to one file; `read` returns the text of a module."""
    modules, imports, sections = PROGRAMS[program], dict[str, set[str]](), []
    for path in modules:
        _, docstring, rest = read(path).split('"""', 2)
        code = IMPORTS.sub("", rest.removeprefix("\n"), count=1)
        for node in ast.parse(rest.removesuffix(code)).body:  # Without the code, to save 0.2 s.
            assert isinstance(node, ast.Import | ast.ImportFrom), path
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            if not module.startswith("trainer."):
                imports.setdefault(module, set()).update(each.name for each in node.names)
        sections.append((path, docstring, code))
    (_, described, start), *others = sections
    names = f"Joined by kit from modules of the trainer: {', '.join(modules)}."
    head = textwrap.wrap(names, 100, initial_indent="# ", subsequent_indent="# ")
    head += ["", *(f"import {name}" for name in sorted(imports.pop("")))]
    head += (f"from {name} import {', '.join(sorted(imports[name]))}" for name in sorted(imports))
    parts = ["\n".join([f'"""{described}"""', "", *head, start])]
    for path, docstring, code in others:
        comment = [f"# {line}".rstrip() for line in (f"-------- {path}", *docstring.splitlines())]
        parts.append("\n".join([*comment, code]))
    return "\n\n\n".join(part.rstrip() for part in parts) + "\n"
