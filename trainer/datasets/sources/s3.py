"""Objects of S3 and of servers that speak its protocol, with boto3.

An incomplete object is resumed: its file is named after key and ETag, and the request for the rest
requires that the ETag is still the same.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainer.contract.sources import is_archive
from trainer.contract.words import shown
from trainer.datasets.errors import FAILURE, MISTAKE, DataSetError
from trainer.datasets.layout import require_room
from trainer.datasets.sources.archives import DamagedError
from trainer.datasets.sources.several import (
    BLOCK,
    SILENCE,
    TRIES,
    WORKERS,
    Progress,
    Report,
    check_names,
    fetch_all,
    give,
    library,
)
from trainer.datasets.sources.web import place

KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where you run kit"
FIXES = {
    "NoSuchBucket": "correct the bucket, or set AWS_ENDPOINT_URL if it is not at AWS",
    "InvalidAccessKeyId": f"{KEYS} to keys of this server, or AWS_ENDPOINT_URL to theirs",
    "SignatureDoesNotMatch": f"{KEYS} to a pair that belongs together",
    "ExpiredToken": "get new credentials, and set AWS_SESSION_TOKEN too",
    "InvalidToken": "set AWS_SESSION_TOKEN to the token of these keys, or unset it",
    "PreconditionFailed": "it has changed meanwhile: try again",
    "NoSuchKey": "it was deleted meanwhile: try again",
}
"""The advice for the error codes of S3."""


@dataclass(frozen=True)
class Object:
    """An object of the bucket; `name` is its path in the data set."""

    key: str
    name: str
    size: int
    tag: str

    @property
    def file(self) -> str:
        """The name of the file with its bytes until the data set is complete."""
        return hashlib.sha256(f"{self.tag}\n{self.key}".encode()).hexdigest()


def from_s3(url: str, folder: Path, kept: Path, report: Report) -> str:
    """Download the objects of s3://BUCKET/PREFIX; a single archive is unpacked."""
    boto3 = library("boto3", "boto3")
    errors = library("botocore.exceptions", "boto3")
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not bucket:
        raise DataSetError(f"{url} names no bucket", "write s3://BUCKET/FOLDER/", MISTAKE)
    signed = True
    try:
        client, signed = _client(boto3)
        objects = list(_find(client, bucket, prefix))
        _check(url, objects)
        _fetch(client, bucket, objects, kept, report)
    except errors.ClientError as error:
        raise _refused(url, error, signed=signed) from error
    except errors.ParamValidationError as error:
        raise DataSetError(f"{url}: {_line(error)}", "correct the bucket", MISTAKE) from error
    except (
        errors.PartialCredentialsError,
        errors.CredentialRetrievalError,
        errors.ProfileNotFound,
    ) as error:
        raise DataSetError(f"{url}: {_line(error)}", KEYS, MISTAKE) from error
    except (errors.BotoCoreError, errors.HTTPClientError, ValueError) as error:
        fix = "check the network and AWS_ENDPOINT_URL, and try again: it continues where it ended"
        raise DataSetError(f"{url}: {_line(error)}", fix) from error
    _place(objects, prefix, kept, folder, report)
    return url


def _client(boto3: Any) -> tuple[Any, bool]:
    """Return a client, and whether it has credentials; without them, it reads public buckets."""
    core = library("botocore", "boto3")
    config = library("botocore.config", "boto3")
    session = boto3.session.Session(region_name=os.environ.get("AWS_REGION"))
    signed = session.get_credentials() is not None
    settings = config.Config(
        connect_timeout=10,
        read_timeout=SILENCE,
        retries={"mode": "standard", "total_max_attempts": TRIES},
        max_pool_connections=WORKERS,
        signature_version=None if signed else core.UNSIGNED,
    )
    return session.client("s3", config=settings), signed


def _find(client: Any, bucket: str, prefix: str) -> Iterator[Object]:
    """Yield the object of that key, or those of the folder, without empty folder markers."""
    base = prefix if prefix.endswith("/") or not prefix else f"{prefix}/"
    if base != prefix:
        first = client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1).get("Contents", [])
        for each in first:
            if each["Key"] == prefix and each["Size"]:
                name = prefix.rpartition("/")[2]
                yield Object(prefix, name, each["Size"], each["ETag"])
                return
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=base)
    for page in pages:
        for each in page.get("Contents", []):
            key, size = each["Key"], each["Size"]
            if size or not key.endswith("/"):
                yield Object(key, key.removeprefix(base), size, each["ETag"])


def _check(url: str, objects: list[Object]) -> None:
    if not any(each.size for each in objects):
        what = f"{url}: there is no object with content"
        fix = "correct the address; `aws s3 ls` shows what the bucket has"
        raise DataSetError(what, fix, MISTAKE)
    check_names(url, [each.name for each in objects])


def _fetch(client: Any, bucket: str, objects: list[Object], kept: Path, report: Report) -> None:
    there = {each.name: each.stat().st_size for each in kept.iterdir()}
    total = sum(each.size for each in objects)
    progress = Progress(sum(there.get(each.file, 0) for each in objects))
    require_room(kept, total - progress.done)
    missing = [each for each in objects if there.get(each.file) != each.size]
    fetch_all(
        missing,
        partial(_fetch_one, client, bucket, kept, progress),
        lambda: report("downloading", progress.done, total),
        progress.stop,
    )


def _fetch_one(client: Any, bucket: str, kept: Path, progress: Progress, wanted: Object) -> None:
    """Download the rest of an object."""
    errors = library("botocore.exceptions", "boto3")
    file, tries = kept / wanted.file, 0
    file.touch()
    while (done := file.stat().st_size) < wanted.size:
        try:
            _fetch_rest(client, bucket, file, progress, wanted)
        except (
            errors.HTTPClientError,
            errors.IncompleteReadError,
            errors.FlexibleChecksumError,
        ) as error:
            if isinstance(error, errors.FlexibleChecksumError):
                progress.add(-file.stat().st_size)
                file.write_bytes(b"")  # It was damaged in transfer.
            tries = 0 if file.stat().st_size > done else tries + 1
            if tries >= TRIES:
                raise
            time.sleep(min(tries, 3))
    if file.stat().st_size != wanted.size:
        file.unlink()
        what = f"{wanted.key} has another size than the {wanted.size} bytes of its listing"
        raise DataSetError(what, "try again", FAILURE)


def _fetch_rest(client: Any, bucket: str, file: Path, progress: Progress, wanted: Object) -> None:
    done = file.stat().st_size
    rest = {"Range": f"bytes={done}-"} if done else {}
    answer = client.get_object(Bucket=bucket, Key=wanted.key, IfMatch=wanted.tag, **rest)
    with closing(answer["Body"]) as body, file.open("ab") as target:
        for block in body.iter_chunks(BLOCK):
            target.write(block)
            progress.add(len(block))


def _place(objects: list[Object], prefix: str, kept: Path, folder: Path, report: Report) -> None:
    only = objects[0]
    if only.key != prefix or not is_archive(only.name):
        for each in objects:
            give(kept / each.file, folder / each.name)
        return
    try:
        place(kept / only.file, only.name, folder, report)
    except DamagedError:
        (kept / only.file).unlink()
        raise


def _refused(url: str, error: Any, *, signed: bool) -> DataSetError:
    """Convert S3's answer to an error with a remedy."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    fix = FIXES.get(code)
    if fix is None and status in (401, 403):
        fix = "give these keys the rights s3:ListBucket and s3:GetObject" if signed else KEYS
    if fix is None and 300 <= status < 500:
        fix = "correct the address, or set AWS_REGION to the region of the bucket"
    what = f"{url}: {_line(error)}"
    return DataSetError(what, fix or "try again later", MISTAKE if fix else FAILURE)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or shown(error)
