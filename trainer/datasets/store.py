"""The store of data sets, on the storage host.

    python -m trainer.datasets.store --store /store add NAME SOURCE [--licence TEXT] [--version N]
    python -m trainer.datasets.store --store /store ls | verify NAME[@V] | rm NAME@V
    python -m trainer.datasets.store --store /store receive NAME PATH --offset N
    python -m trainer.datasets.store --store /store put NAME [--keep NAME …]

SOURCE: torchvision:NAME, a folder, file or archive in this container, https://…, s3://…, hf://…,
upload: for the files that `receive` has got for NAME, or - to read one of these from standard
input. With --json, each line of the output is an object; errors are on standard error too. Exit
codes: 2 for a mistake in the input, 1 for a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from trainer.contract.words import shown, some
from trainer.datasets.code import blocks, put
from trainer.datasets.errors import FAILURE, MISTAKE, DataSetError
from trainer.datasets.layout import (
    DRAFT,
    Place,
    complete,
    find_places,
    index,
    is_version,
    locked,
    remove,
    show_bytes,
)
from trainer.datasets.manifest import (
    LONGEST_TEXT,
    Manifest,
    Progress,
    check_name,
    check_path,
    check_tree,
    check_version,
    find_damage,
    hash_files,
)
from trainer.datasets.sources.fill import PARTIAL, fill
from trainer.datasets.sources.local import UPLOADS, find_offset, receive
from trainer.datasets.sources.web import public
from trainer.output import say, say_error
from trainer.store.files import replace_file

LAST = ".last"
"""The highest version of a name. Versions are not reused: caches may still have removed ones."""
EVERY = 1.0  # Seconds between two lines of progress.


class Reporter:
    """Prints progress, at most a line a second for each state, for people or programs."""

    def __init__(self, *, json: bool) -> None:
        self._json, self._last = json, ("", 0.0)

    def show(self, state: str, done: int, total: int) -> None:
        """Show the bytes done and the total; 0: unknown."""
        state_before, at = self._last
        now = time.monotonic()
        if state == state_before and now - at < EVERY and done != total:
            return
        self._last = state, now
        amount = f" {show_bytes(done)}" if done else ""
        amount += f" of {show_bytes(total)}" if total and done else ""
        self.line(f"{state}{amount}", state=state, bytes=done, total=total)

    def counter(self, state: str, total: int) -> Progress:
        """Return a function that adds bytes to the progress of a state."""
        done = 0

        def add(count: int) -> None:
            nonlocal done
            done += count
            self.show(state, done, total)

        return add

    def line(self, text: str, **values: object) -> None:
        """Print a line: the text for people, the values for programs."""
        say(json.dumps(values, ensure_ascii=False) if self._json else text)


def add(
    store: Path,
    name: str,
    source: str,
    licence: str,
    version: int | None,
    reporter: Reporter,
    described: str = "",
) -> Manifest:
    """Add a version; readers see it once it is complete. Raises DataSetError.

    The manifest has `described` as the source, if this is given and differs from `source`;
    otherwise the exact name of the source, without secrets.
    """
    described = public(described or source)
    check_name(name)
    if not licence.isprintable() or not described.isprintable() or len(described) > LONGEST_TEXT:
        raise DataSetError("--licence and SOURCE must be lines of text", "shorten them", MISTAKE)
    fix = "wait for its end"
    with locked(store / name / ".lock", f"{name} is being added by another program", fix):
        place = _next_place(store, name, version)
        draft = place.folder.with_name(f"{DRAFT}{place.version}")
        if draft.exists():  # From an interrupted program.
            shutil.rmtree(draft)
        (draft / "data").mkdir(parents=True)
        try:
            filled = fill(source, draft / "data", store, name, reporter.show)
            described = filled.source if described == public(source) else described
            if filled.left_out:
                text = f"left out, as hidden: {some(filled.left_out)}"
                reporter.line(text, left_out=filled.left_out)
            manifest = _describe(draft, place, described, licence, reporter)
            draft.rename(place.folder)
        except BaseException:
            _keep_uploads(draft, store, name)
            raise
        reporter.show("writing", manifest.bytes, manifest.bytes)
        complete(place, manifest.bytes)
        replace_file(store / name / LAST, str(place.version).encode())
    for left in (UPLOADS, PARTIAL):
        shutil.rmtree(store / left / name, ignore_errors=True)
    return manifest


def _next_place(store: Path, name: str, version: int | None) -> Place:
    there = [place for place in find_places(store) if place.name == name]
    for place in there:
        if not place.complete and version in (None, place.version):
            remove(place)  # From a program that was interrupted while it wrote.
    last = store / name / LAST
    newest = int(last.read_text()) if last.exists() else 0
    place = Place(store, name, check_version(version or newest + 1))
    if place.version <= newest and version:
        fix = f"leave out --version, or give {newest + 1}"
        raise DataSetError(f"{name}@{version} exists, and versions never change", fix, MISTAKE)
    return place


def _keep_uploads(draft: Path, store: Path, name: str) -> None:
    """Move uploads back before a draft is removed: sending them again may take hours."""
    uploads = store / UPLOADS / name
    if uploads.is_dir() and not any(uploads.iterdir()):
        uploads.rmdir()
        (draft / "data").rename(uploads)
    shutil.rmtree(draft, ignore_errors=True)


def _describe(draft: Path, place: Place, source: str, licence: str, reporter: Reporter) -> Manifest:
    from trainer.datasets.torrent import make_torrent

    total = sum(file.stat().st_size for file in (draft / "data").rglob("*") if file.is_file())
    files = hash_files(draft / "data", reporter.counter("hashing", total))
    check_tree(file.path for file in files)
    version = f"{place.name}@{place.version}"
    torrent, info_hash = make_torrent(draft, version, files, reporter.counter("pieces", total))
    made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    known = (sum(file.bytes for file in files), licence, source, made, info_hash)
    manifest = Manifest(place.name, place.version, files, *known)
    replace_file(draft / "dataset.torrent", torrent, durable=False)
    replace_file(draft / "manifest.json", manifest.text().encode(), durable=False)
    return manifest


def find(store: Path, reference: str) -> list[Place]:
    """The complete versions that NAME or NAME@VERSION names; raises DataSetError."""
    name, at, version = reference.partition("@")
    check_name(name)
    if at and not is_version(version):
        raise DataSetError(f"{shown(version)} is no version", f"use {name}@1", MISTAKE)
    places = [place for place in find_places(store) if place.name == name and place.complete]
    found = [place for place in places if not at or place.version == int(version)]
    if not found:
        there = ", ".join(f"{key}@{n}" for key, all_ in index(store).items() for n in all_)
        what = f"there is no {reference} in {store}"
        raise DataSetError(what, f"use one of: {there}" if there else "add it first", MISTAKE)
    return found


def run_add(options: argparse.Namespace, reporter: Reporter) -> None:
    """Add a version and say which."""
    source = sys.stdin.readline().strip() if options.source == "-" else options.source
    manifest = add(
        options.store,
        options.name,
        source,
        options.licence,
        options.version,
        reporter,
        options.described,
    )
    size, count = show_bytes(manifest.bytes), len(manifest.files)
    text = f"added {manifest.name}@{manifest.version}: {size} in {count} files"
    reporter.line(text, state="done", **_facts(manifest))


def _facts(manifest: Manifest) -> dict[str, object]:
    return {
        "name": manifest.name,
        "version": manifest.version,
        "bytes": manifest.bytes,
        "files": len(manifest.files),
        "licence": manifest.licence,
        "source": manifest.source,
        "made": manifest.made,
    }


def run_ls(options: argparse.Namespace, _: Reporter) -> None:
    """List the complete versions; with --json, as one list."""
    found = [place.read() for place in find_places(options.store) if place.complete]
    if options.json:
        return say(json.dumps([_facts(each) for each in found], ensure_ascii=False))
    for each in found:
        facts = f"{show_bytes(each.bytes)}, {len(each.files)} files, {each.made}, {each.source}"
        say(f"{each.name}@{each.version}: {facts}")
    return None


def run_verify(options: argparse.Namespace, reporter: Reporter) -> None:
    """Compare all files with their manifests; raises DataSetError if one is damaged."""
    damaged = []
    for place in find(options.store, options.reference):
        manifest = place.read()
        count = reporter.counter("verifying", manifest.bytes)
        lines = find_damage(manifest.files, place.data, count)
        reference = f"{place.name}@{place.version}"
        facts = {"name": place.name, "version": place.version, "damage": lines}
        text = "\n".join((f"{reference} is {'damaged' if lines else 'intact'}", *lines))
        reporter.line(text, state="damaged" if lines else "intact", **facts)
        damaged += [reference] if lines else []
    if damaged:
        fix = "add it again as a new version, from its source"
        raise DataSetError(f"{', '.join(damaged)} is damaged", fix)


def run_rm(options: argparse.Namespace, reporter: Reporter) -> None:
    """Remove one version, unless it is in use."""
    if "@" not in options.reference:
        fix = f"name it with its version, as {options.reference}@1"
        raise DataSetError("rm removes one version", fix, MISTAKE)
    for place in find(options.store, options.reference):
        remove(place)
        text = f"removed {place.name}@{place.version}"
        reporter.line(text, state="removed", name=place.name, version=place.version)


def run_receive(options: argparse.Namespace, _: Reporter) -> None:
    """Append standard input to an upload; print how many bytes of it are there then."""
    path = options.store / UPLOADS / check_name(options.name) / check_path(options.path)
    if options.offset == "?":
        return say(str(find_offset(path)))
    if not options.offset.isdecimal():
        raise DataSetError("--offset must be a number of bytes or ?", "use --offset ?", MISTAKE)
    fix = "end it, or wait for its end"
    with locked(options.store / UPLOADS / ".lock", "another upload is running", fix):
        say(str(receive(path, int(options.offset), blocks(sys.stdin.buffer))))
    return None


def run_put(options: argparse.Namespace, reporter: Reporter) -> None:
    """Store code from standard input, unless it is stored."""

    def add_code(store: Path, name: str, source: str, described: str) -> Manifest:
        return add(store, name, source, "", 1, reporter, described)

    put(options, reporter, add_code)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    result = argparse.ArgumentParser(prog="store", description=(__doc__ or "").splitlines()[0])
    result.add_argument("--store", type=Path, required=True, help="folder of the store")
    commands = result.add_subparsers(required=True)

    def command(name: str, run: Callable[..., None], *words: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=(run.__doc__ or "").splitlines()[0])
        for word in words:
            sub.add_argument(word)
        sub.add_argument("--json", action="store_true", help="for programs")
        sub.set_defaults(run=run)
        return sub

    adding = command("add", run_add, "name", "source")
    adding.add_argument("--described", default="", help="the source, as the manifest names it")
    adding.add_argument("--licence", default="", help="the licence of the data, or its address")
    adding.add_argument("--version", type=int, help="default: one more than the newest")
    command("ls", run_ls)
    command("verify", run_verify, "reference")
    command("rm", run_rm, "reference")
    putting = command("put", run_put, "name")
    putting.add_argument("--described", default="", help="the source, as the manifest names it")
    putting.add_argument("--keep", nargs="*", default=[], help="other code that stays")
    command("receive", run_receive, "name", "path").add_argument("--offset", required=True)
    return result


def main(arguments: list[str]) -> int:
    """Run a command; return the exit code."""
    options = parser().parse_args(arguments)
    os.umask(0o022)  # The server runs as another user.
    reporter = Reporter(json=options.json)
    try:
        options.run(options, reporter)
    except DataSetError as error:
        return _fail(error, reporter, json=options.json)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        failed = DataSetError(f"{where}{error.strerror}", "correct it and try again", FAILURE)
        return _fail(failed, reporter, json=options.json)
    return 0


def _fail(error: DataSetError, reporter: Reporter, *, json: bool) -> int:
    if json:
        reporter.line("", state="failed", message=error.message, fix=error.fix)
    say_error(f"error: {error}")
    return error.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
