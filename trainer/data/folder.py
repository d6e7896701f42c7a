"""Lists a folder of images: its parts, classes and pictures.

Standard library only: the launcher uses it before torch, to report all mistakes before
the first step.

    train/<class>/<picture>     also training/; the folders of `train` are the classes
    val/<class>/<picture>       also valid/, validation/, dev/
    test/<class>/<picture>      also testing/, eval/, evaluation/; without it, val/ is the test;
                                without both, a fifth of train

As in torchvision's ImageFolder, a class has all pictures below its folder. Hidden files and folders
(trainer/contract/sources.py) are skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainer.contract.sources import is_hidden
from trainer.contract.words import some

ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp"),
    *(".tif", ".tiff", ".ppm", ".pgm"),
)
"""File name endings of pictures, which Pillow reads without further packages."""
TRAIN = ("train", "training")
VALIDATION = ("val", "valid", "validation", "dev")
TEST = ("test", "testing", "eval", "evaluation", *VALIDATION)
"""In the order of preference."""


class FolderError(Exception):
    """A folder that cannot be trained on; the message has its path and a remedy."""


@dataclass
class Tally:
    """The files of a folder that are not used."""

    endings: Counter[str] = field(default_factory=Counter)
    hidden: Counter[str] = field(default_factory=Counter)
    loose: Counter[str] = field(default_factory=Counter)
    """Pictures beside the folders of classes, by part."""
    broken: list[Path] = field(default_factory=list)
    """Broken symbolic links."""

    def lines(self) -> Iterator[str]:
        """Describe the files for the log."""
        for part, number in self.loose.items():
            yield f"not used: {_count(number, 'picture')} of {part}/ outside of the classes"
        if self.endings:
            found = ", ".join(f"{end} ({number:,})" for end, number in self.endings.most_common())
            yield f"not used: files that end in {found}; pictures end in {', '.join(ENDINGS)}"
        if self.hidden:
            yield f"not used: hidden files and folders: {some(sorted(self.hidden))}"


@dataclass(frozen=True)
class Part:
    """The pictures of a part, sorted by class and path."""

    name: str  # Of its folder.
    pictures: tuple[Path, ...] = ()
    labels: tuple[int, ...] = ()
    """The classes of the pictures, 0 to classes - 1."""


@dataclass(frozen=True)
class ImageFolder:
    """A folder of images. The folders of `train`, in their order, are the classes of all parts."""

    classes: tuple[str, ...]
    train: Part
    test: Part | None
    """None: a part of `train` is split off for it."""
    validation: Part | None
    """None: the test is evaluated after each epoch."""
    notes: tuple[str, ...]
    """Log lines: counts, and unused files."""

    @property
    def pictures(self) -> list[Path]:
        """The training pictures, then those of the other parts."""
        parts = (self.train, self.validation, self.test)
        return [picture for part in parts if part for picture in part.pictures]


def read_folder(folder: Path) -> ImageFolder:
    """Read a folder of images; raises FolderError for mistakes that would spoil the training."""
    try:
        return _read(folder)
    except OSError as error:
        raise FolderError(f"{error.filename} cannot be read ({error.strerror})") from error


def _read(folder: Path) -> ImageFolder:
    tally, there = Tally(), _folders(folder)
    named = _part(there, TRAIN, folder)
    if named is None:
        raise FolderError(f"{folder} has no train/; {_advice(folder, there)}")
    tables = _classes(folder / named, tally)
    _require_classes(folder / named, tables, tally)
    classes = tuple(tables)
    found, passed = _others(folder, there, classes, tally)
    train = _labelled(named, tables, classes)
    test, validation = (_labelled(*each, classes) if each else None for each in found)
    if tally.broken:
        raise FolderError(
            f"{folder}: {_count(len(tally.broken), 'link')} to files that are not here: "
            f"{some(map(str, tally.broken))}; in a container, mount the folder that they lead "
            "to at the same path, or copy the files"
        )
    counts = _counts(classes, train, validation, test)
    few = [*_few(classes, train, test), *(_few(classes, train, validation) if validation else ())]
    notes = [counts, *passed, *few, *tally.lines()]
    return ImageFolder(classes, train, test, validation, tuple(notes))


Tables = dict[str, list[Path]]
"""The pictures of each class, both sorted."""


def _folders(folder: Path) -> list[str]:
    """Return the direct subfolders of a folder, without hidden ones."""
    if not folder.is_dir():
        raise FolderError(
            f"there is no folder {folder}; put it there on every host, or set KIT_DATA to the "
            "folder below which train.path is"
        )
    with os.scandir(folder) as entries:
        return sorted(each.name for each in entries if each.is_dir() and not is_hidden(each.name))


def _part(there: list[str], names: tuple[str, ...], folder: Path) -> str | None:
    """Return the folder with one of the names of a part, ignoring case."""
    found = [each for each in there if each.lower() in names]
    if len(found) > 1:
        both = " and ".join(f"{each}/" for each in found)
        raise FolderError(f"{folder} has {both}: keep one of them for the training")
    return found[0] if found else None


def _advice(folder: Path, there: list[str]) -> str:
    for each in there:
        if any(name.lower() in TRAIN for name in _folders(folder / each)):
            return f"it is in {each}/: add /{each} to train.path"
    return "put pictures there as train/<class>/<picture> and, for the test, test/<class>/<picture>"


def _classes(part: Path, tally: Tally) -> Tables:
    """Return the pictures of each folder of a part."""
    tables: Tables = {}
    with os.scandir(part) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            if is_hidden(entry.name):
                tally.hidden[entry.name] += 1
            elif entry.is_dir():
                tables[entry.name] = list(_pictures(entry.path, tally, ()))
            elif is_picture(entry.name):
                tally.loose[part.name] += 1
            else:
                tally.endings[_ending(entry.name)] += 1
    return tables


def _pictures(folder: str, tally: Tally, above: tuple[str, ...]) -> Iterator[Path]:
    """Yield the pictures below a folder in the order of their paths; `above` stops link cycles."""
    real = os.path.realpath(folder)
    if real in above:
        return
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda each: each.name)
    for entry in found:
        if is_hidden(entry.name):
            tally.hidden[entry.name] += 1
        elif entry.is_dir():
            yield from _pictures(entry.path, tally, (*above, real))
        elif not is_picture(entry.name):
            tally.endings[_ending(entry.name)] += 1
        elif entry.is_file():
            yield Path(entry.path)
        else:
            tally.broken.append(Path(entry.path))


def is_picture(name: str) -> bool:
    """Whether a file's name is that of a picture."""
    return name.lower().endswith(ENDINGS)


def _ending(name: str) -> str:
    return Path(name).suffix.lower() or "no ending"


def _require_classes(part: Path, tables: Tables, tally: Tally) -> None:
    empty = [name for name, pictures in tables.items() if not pictures]
    if empty and len(empty) < len(tables):
        raise FolderError(
            f"{part} has {_count(len(empty), 'folder')} without a picture: {some(empty)}; each "
            f"folder is a class: add pictures ({', '.join(ENDINGS)}), or move it away"
            + _seen(tally)
        )
    if len(tables) - len(empty) > 1:
        return
    have = some(name for name in tables if name not in empty) or "none"
    raise FolderError(
        f"{part} needs folders with pictures ({', '.join(ENDINGS)}) for two classes or more, as "
        f"{part.name}/<class>/<picture>; it has: {have}" + _seen(tally)
    )


def _seen(tally: Tally) -> str:
    return "".join(f" ({line})" for line in tally.lines())


Chosen = tuple[str, Tables] | None
"""A part's folder with its pictures."""


def _others(
    folder: Path, there: list[str], classes: tuple[str, ...], tally: Tally
) -> tuple[tuple[Chosen, Chosen], list[str]]:
    """Return the parts for the test and the validation, and log lines about the others.

    A part without folders of the classes has no labels: another one is used.
    """
    found = sorted((each for each in there if each.lower() in TEST), key=_rank)
    passed, wrong = list[str](), ""
    test: Chosen = None
    validation: Chosen = None
    for name in found:
        extra = test is not None and not _validates(test[0]) and _validates(name)
        taken, use = (validation, "validation") if extra else (test, "test")
        if taken:
            passed.append(f"not used: {name}/, as {taken[0]}/ is the {use}")
            continue
        seen = Tally()
        tables = {each: files for each, files in _classes(folder / name, seen).items() if files}
        if not tables and not seen.loose:
            passed.append(f"not used: {name}/, which has no pictures")
        elif known := [each for each in tables if each in classes]:
            if len(known) < len(tables):
                raise FolderError(_unknown(folder, name, tables, classes))
            _add(tally, seen)
            test, validation = (test, (name, tables)) if extra else ((name, tables), None)
        else:
            wrong = wrong or _unknown(folder, name, tables, classes)
            passed.append(f"not used: {name}/, whose pictures are not in folders of the classes")
    if wrong and not test:
        raise FolderError(wrong)
    return (test, validation), passed


def _validates(name: str) -> bool:
    return name.lower() in VALIDATION


def _rank(name: str) -> tuple[int, str]:
    return TEST.index(name.lower()), name


def _add(tally: Tally, other: Tally) -> None:
    tally.endings += other.endings
    tally.hidden += other.hidden
    tally.loose += other.loose
    tally.broken += other.broken


def _unknown(folder: Path, name: str, tables: Tables, classes: tuple[str, ...]) -> str:
    strange = [each for each in tables if each not in classes]
    what = f"has pictures in {some(strange)}" if strange else "has pictures outside of folders"
    return (
        f"{folder / name} {what}, and the classes are those of the training: {some(classes)}; "
        f"put its pictures into folders of these names, or move {name}/ away: without a part for "
        "the test, a fifth of each class is the test"
    )


def _labelled(name: str, tables: Tables, classes: tuple[str, ...]) -> Part:
    number = {each: label for label, each in enumerate(classes)}
    pairs = [(file, number[each]) for each in sorted(tables) for file in tables[each]]
    return Part(name, tuple(file for file, _ in pairs), tuple(label for _, label in pairs))


def _counts(
    classes: tuple[str, ...], train: Part, validation: Part | None, test: Part | None
) -> str:
    tested = "the test is a fifth of each class"
    if test:
        tested = f"{_count(len(test.pictures), 'picture')} in {test.name}/ for the test"
    if validation:
        number = _count(len(validation.pictures), "picture")
        tested = f"{number} in {validation.name}/ to choose the best checkpoint by, {tested}"
    of = f"{len(classes):,} classes ({some(classes)})"
    return f"{of}: {_count(len(train.pictures), 'picture')} in {train.name}/, {tested}"


def _few(classes: tuple[str, ...], train: Part, test: Part | None) -> Iterator[str]:
    """Yield warnings about classes that are missing in the test."""
    if test is None:
        numbers = Counter(train.labels)
        alone = [name for label, name in enumerate(classes) if numbers[label] == 1]
        if alone:
            yield f"warning: classes with one picture, which the test has not: {some(alone)}"
        return
    tested = set(test.labels)
    missing = [name for label, name in enumerate(classes) if label not in tested]
    if missing:
        yield f"warning: {test.name}/ has no pictures of {some(missing)}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
