"""Hints for unknown keys of a file: kit's key with the same meaning, or why there is none."""

from __future__ import annotations

import copy
import functools
import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from kit.config import names
from kit.config.flow import flow, line
from kit.config.inventory import InventorySection
from kit.config.job import JobSection
from kit.config.shell import read_words, split
from kit.config.train import rule_faults
from kit.errors import Fault, Loc
from trainer.contract.words import nearest

Snippet = Mapping[str, Any]
JOB = (*names.WORK, *names.TRAIN)
JOB_SECTION = (*names.TRAIN, *names.WORK)
"""In a section such as `train:`, the keys of a training come first."""
CHOSEN = frozenset({"hosts", "environment", "secrets", "setup", "image", "mounts"})
"""Keys whose values have another form in other programs, or must not be shown."""
LONGEST = 60
"""Characters of a user's own value in a hint; a longer one is replaced by an example."""


def unknown_key(
    loc: Loc, value: object, root: type[BaseModel], document: object, known: list[str]
) -> str:
    """Return what to write in place of the unknown key at `loc` of a file with the keys of `root`.

    `known` are the keys that this place has. Lines that are proposed are valid in `document`.
    """
    name = snake(str(loc[-1]))
    if name in known:  # In another spelling.
        return nearest(name, known)
    if root is InventorySection:
        hint = _of_inventory(name, loc) or _of_a_job(name) or _reason(names.DECIDED, name)
    else:
        hint = _of_work(name, loc, value, root, document) or _reason(names.DECIDED, name)
        hint = hint or (_of_a_job(name) if root is not JobSection else "")
    return hint or nearest(loc[-1], known)


def snake(key: str) -> str:
    """Write `shmSize` and `shm-size` as `shm_size`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key)
    return re.sub(r"[-\s]+", "_", words).lower().lstrip("_")


def _of_inventory(name: str, loc: Loc) -> str:
    host, rows = len(loc) if loc[0] == "hosts" else 0, names.OF_INVENTORY
    if host:
        rows = names.OF_HOST if host == 3 else names.OF_GPU if host == 5 else ()
    if snippet := next(_rows(rows, name), None):
        return f"write {_lines(snippet, () if host else loc)}"
    if reason := _reason(names.OF_INVENTORY_DECIDED, name):
        return reason
    snippet = None if host else next(_homes(name, loc, None, InventorySection), None)
    return f"write {_lines(snippet, loc)}" if snippet else ""


def _of_a_job(name: str) -> str:
    """Return a hint for a key that belongs in the file of a job."""
    keys = [*_rows(JOB, name), *_homes(name, (name,), None, JobSection)]
    if known_keys := [each for each in keys if _is_known(each, JobSection)]:
        return f"it is for a job: write {_lines(known_keys[0])} in jobs/NAME.yaml"
    if name in JobSection.model_fields:
        return "it is for a job: write it in jobs/NAME.yaml"
    return ""


def _of_work(name: str, loc: Loc, value: object, root: type[BaseModel], document: object) -> str:
    """Return a hint for a job or a server."""
    rows = (JOB if len(loc) == 1 else JOB_SECTION) if root is JobSection else names.WORK
    proposals = [*_rows(rows, name), *_homes(name, loc, value, root)]
    if not proposals:
        return ""
    before = _mistakes(root, document)
    refused: list[Snippet] = []
    for snippet in (each for each in proposals if _is_known(each, root)):
        for each in _with_value(snippet, name, value, document):
            if document is None or _mistakes(root, _replaced(document, loc, each)) <= before:
                return f"write {_lines(each, loc)}"
        refused.append(snippet)
    if _reason(names.DECIDED, name):
        return ""
    if any(section == "train" for each in refused for section in each):
        return _argument(loc, value, document)
    if refused:
        kind = next((key for key in ("train", "command", "job") if key in _keys(document)), "job")
        return f"leave it out: a file with `{kind}:` has no {_dotted(refused[0])}"
    return ""


def _argument(loc: Loc, value: object, document: object) -> str:
    """Return the hint that a script gets a value as an argument."""
    command = _keys(document).get("command")
    words = command if isinstance(command, list) else ["train.py"]
    words = [*map(str, words), f"--{loc[-1]}"]
    plain = isinstance(value, (int, float, str)) and not isinstance(value, bool)
    words += [str(value)] if plain else []
    proposed = line("command", words)
    return f"leave it out: a script gets it as an argument, if it knows one, as in {proposed}"


def _rows(rows: names.Rows, name: str) -> Iterator[Snippet]:
    return (snippet for snippet, meant in rows if name in meant.split())


def _reason(rows: names.Reasons, name: str) -> str:
    reasons = (reason for reason, meant in rows if name in meant.split())
    return next((f"leave it out: {reason}" for reason in reasons), "")


def _homes(name: str, loc: Loc, value: object, root: type[BaseModel]) -> Iterator[Snippet]:
    """Yield the place of the file that knows the key: its only section, or its beginning."""
    if len(loc) > 1:
        if name in root.model_fields and name != loc[0]:
            yield {name: _example(root, name, value)}
        return
    sections = [
        (section, model)
        for section, field in root.model_fields.items()
        for model in _models(field.annotation)
        if name in model.model_fields
    ]
    if len(sections) == 1:
        [(section, model)] = sections
        yield {section: {name: _example(model, name, value)}}


def _is_known(snippet: Snippet, root: type[BaseModel]) -> bool:
    """Whether a file has the keys of a snippet."""
    for section, content in snippet.items():
        models = (
            list(_models(root.model_fields[section].annotation))
            if section in root.model_fields
            else []
        )
        fields = {name for model in models for name in model.model_fields}
        if section not in root.model_fields or (models and not fields >= {*_keys(content)}):
            return False
    return True


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    options = getattr(annotation, "__args__", None) or (annotation,)
    for each in options:
        if isinstance(each, type) and issubclass(each, BaseModel):
            yield each


def _example(model: type[BaseModel], name: str, value: object) -> object:
    field = model.model_fields[name]
    schema = model.model_json_schema()["properties"][name]
    examples = [*(field.examples or []), *schema.get("examples", [])]
    return examples[0] if examples else value if field.default is None else field.default


def _with_value(snippet: Snippet, name: str, value: object, document: object) -> Iterator[Snippet]:
    """Yield a line with the user's own value, if it has a single one, and the line itself."""
    (section, content), *more = snippet.items()
    leaf = content if isinstance(content, dict) else {section: content}
    own = value
    if section == "command":
        own = _command(name, value, document)
    elif isinstance(value, str) and (size := re.fullmatch(r"(\d+)\s*([kmgt])i?b?", value, re.I)):
        own = f"{size[1]}{size[2].upper()}iB"
    chosen = section in CHOSEN or len(leaf) > 1
    if not chosen and own and len(flow(own)) <= LONGEST:
        mine = dict.fromkeys(leaf, own) if isinstance(content, dict) else own
        yield {section: mine, **dict(more)}
    yield snippet


def _command(name: str, value: object, document: object) -> list[str]:
    """Return the command that a key of another name has, or completes."""
    words = split(value) if isinstance(value, str) else value if isinstance(value, list) else []
    words = list(map(str, words))
    before = _keys(document).get("command")
    if name in {"args", "arguments", "script_args"} and isinstance(before, list):
        return [*map(str, before), *words]
    parsed = read_words(words)
    return [*parsed.command] if parsed else words


def _replaced(document: object, loc: Loc, snippet: Snippet) -> object:
    """Return the document without the key at `loc`, and with the snippet."""
    changed: Any = copy.deepcopy(document)
    place = functools.reduce(operator.getitem, loc[:-1], changed)
    del place[loc[-1]]
    for section, content in snippet.items():
        before = changed.get(section)
        both = isinstance(before, dict) and isinstance(content, dict)
        changed[section] = {**before, **content} if both else content
    return changed


def _mistakes(root: type[BaseModel], document: object) -> set[str]:
    """Return the mistakes of a document."""
    faults: list[Fault] = []
    try:
        root.model_validate(document)
    except ValidationError as error:
        all_ = error.errors(include_url=False, include_input=False)
        faults = [Fault("", tuple(each["loc"]), each["msg"], "") for each in all_]
    rules = rule_faults(document, faults, "") if root is JobSection else ()
    return {f"{each.loc} {each.what}" for each in (*faults, *rules)}


def _lines(snippet: Snippet, loc: Loc = ()) -> str:
    """Return lines as code: inside of the section of `loc`, without its name."""
    section, content = next(iter(snippet.items()))
    in_section = len(loc) == 2 and loc[0] == section and isinstance(content, dict)
    shown = content if in_section and len(snippet) == 1 else snippet
    text = " and ".join(line(name, value) for name, value in shown.items())
    return f"{text} beside `{loc[0]}:`" if len(loc) > 1 and not in_section else text


def _dotted(snippet: Snippet) -> str:
    section, content = next(iter(snippet.items()))
    return f"{section}.{next(iter(content))}" if isinstance(content, dict) else section


def _keys(document: object) -> Mapping[str, Any]:
    return document if isinstance(document, dict) else {}
