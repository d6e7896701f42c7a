"""Data sets from S3: the real boto3, and moto's server, which speaks the protocol on loopback."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from tests.ports import free_port
from tests.trainer.hosts import ROOT, wait_until
from tests.trainer.relay import Relay, Request, relay
from tests.trainer.test_datasets_store import call
from trainer.datasets import layout
from trainer.datasets.errors import FAILURE, MISTAKE, DataSetError
from trainer.datasets.layout import Place, index
from trainer.datasets.sources import s3, several
from trainer.datasets.sources.s3 import from_s3

BIG = bytes(range(251)) * 20_000  # 5 MB: several blocks.
FILES = {
    "data/a.txt": b"a", "data/deep/er/b.bin": b"b" * 1000, "data/empty": b"", "data/": b"",
    "data/deep/": b"", "data2/c.txt": b"not this one", "datafile": b"nor this", "big": BIG,
    "odd/ä 2+%20&?x#y.txt": b"odd", "up/../x": b"x", "abs//etc/passwd": b"x", "red/\x1b[31m": b"x",
    "clash/a": b"x", "clash/a/b": b"y", "markers/": b"", "zero/a": b"", "same": b"file",
    "same/inside": b"folder",
}  # fmt: skip


@pytest.fixture(scope="module")
def moto() -> Iterator[int]:
    """The port of a server with the bucket `pets`."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    environ = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": "3"}  # A page of a listing.
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            begins = (re.search(rb"http://.*:(\d+)$", line.strip()) for line in process.stderr)
            port = int(next(filter(None, begins))[1])
            threading.Thread(target=process.stderr.read, daemon=True).start()
            client = client_of(port)
            client.create_bucket(Bucket="pets")
            for key, content in FILES.items():
                client.put_object(Bucket="pets", Key=key, Body=content)
            yield port
        finally:
            process.terminate()


def client_of(port: int) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the variables of a test: no settings of this machine, no metadata of a cloud."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(s3, "time", SimpleNamespace(sleep=lambda _: None))


@pytest.fixture
def endpoint(moto: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{moto}")
    return moto


@pytest.fixture
def between(moto: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    with relay(moto) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
        yield server


class Run:
    """One call with its folders, and what was reported."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kept = folder / "data", folder / "kept"
        self.reports: list[tuple[str, int, int]] = []
        for each in (self.folder, self.kept):
            each.mkdir(parents=True)

    def __call__(self, url: str) -> dict[str, bytes]:
        """The files that a source gives."""
        from_s3(url, self.folder, self.kept, lambda *words: self.reports.append(words))
        return {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file()
        }

    def refused(self, url: str) -> DataSetError:
        with pytest.raises(DataSetError) as caught:
            self(url)
        assert not list(self.folder.iterdir())
        return caught.value


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


DATA = {"a.txt": b"a", "deep/er/b.bin": b"b" * 1000, "empty": b""}
FOUND = [
    ("s3://pets/data", DATA),  # Not data2/ and datafile, which begin so too.
    ("s3://pets/data/", DATA),
    ("s3://pets/data/deep", {"er/b.bin": b"b" * 1000}),
    ("s3://pets/data/a.txt", {"a.txt": b"a"}),
    ("s3://pets/odd", {"ä 2+%20&?x#y.txt": b"odd"}),
    ("s3://pets/odd/ä 2+%20&?x#y.txt", {"ä 2+%20&?x#y.txt": b"odd"}),
    ("s3://pets/same", {"same": b"file"}),
    ("s3://pets/same/", {"inside": b"folder"}),
]


@pytest.mark.parametrize(("url", "files"), FOUND)
@pytest.mark.usefixtures("endpoint")
def test_an_address_is_an_object_or_a_folder(run: Run, url: str, files: dict[str, bytes]) -> None:
    assert run(url) == files


REFUSED = [
    ("s3://pets/nothing", "there is no object with content; correct the address"),
    ("s3://pets/dat", "there is no object with content"),
    ("s3://pets/markers/", "there is no object with content"),
    ("s3://pets/zero", "there is no object with content"),
    ("s3://cats/data", "NoSuchBucket"),
    ("s3://", "names no bucket; write s3://BUCKET/FOLDER/"),
    ("s3://in valid/x", "correct the bucket"),
    ("s3://pets/up", "`..` would leave the folder"),
    ("s3://pets/abs", "'/etc/passwd' cannot be used: it is absolute"),
    ("s3://pets/red", "it has a control character"),
    ("s3://pets/clash", "'a' is a file and a folder; rename it in the source"),
]


@pytest.mark.parametrize(("url", "message"), REFUSED)
def test_a_mistake_is_said_before_anything_is_downloaded(
    run: Run, between: Relay, url: str, message: str
) -> None:
    error = run.refused(url)
    assert message in str(error)
    assert error.code == MISTAKE
    assert not [each for each in between.seen if "list-type" not in each.path]
    assert not list(run.kept.iterdir())


@pytest.mark.usefixtures("endpoint")
def test_a_whole_bucket_has_keys_that_can_not_be_files(run: Run) -> None:
    assert "the file name 'abs//etc/passwd' cannot be used" in str(run.refused("s3://pets"))


def test_many_objects_are_listed_to_the_end(run: Run, moto: int, between: Relay) -> None:
    client = client_of(moto)
    for number in range(8):
        client.put_object(Bucket="pets", Key=f"many/{number}", Body=b"x")
    assert len(run("s3://pets/many")) == 8
    assert len([each for each in between.seen if "continuation-token" in each.path]) == 2


@pytest.mark.parametrize("name", ["pets.tar.gz", "PETS.TAR.GZ"])
def test_a_single_archive_is_unpacked(
    run: Run, tmp_path: Path, moto: int, endpoint: int, name: str
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo("a/b.txt")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"hello"))
    content = packed.getvalue()
    client = client_of(moto)
    client.put_object(Bucket="pets", Key=f"packed/{name}", Body=content)
    assert run(f"s3://pets/packed/{name}") == {"a/b.txt": b"hello"}
    client.put_object(Bucket="pets", Key=f"cut/{name}", Body=content[:60])
    cut = Run(tmp_path / "cut")
    assert "cannot be unpacked" in str(cut.refused(f"s3://pets/cut/{name}"))
    assert not list(cut.kept.iterdir())  # It would be as damaged at the next try.


@pytest.mark.usefixtures("own")
def test_the_program_adds_a_version(tmp_path: Path, endpoint: int) -> None:
    found = call(tmp_path, "add", "pets", "s3://pets/data", "--json")
    assert found.returncode == 0, found.stderr
    place = Place(tmp_path / "store", "pets", 1)
    assert [file.path for file in place.read().files] == ["a.txt", "deep/er/b.bin", "empty"]
    assert place.read().source == "s3://pets/data"
    assert not (tmp_path / "store" / ".partial" / "pets").exists()


# ---- credentials


@pytest.fixture
def locked(moto: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The keys of a user; the server checks signatures and rights."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{moto}")
    known = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    where = {"endpoint_url": f"http://127.0.0.1:{moto}", "region_name": "us-east-1"}
    iam: Any = boto3.client("iam", **known, **where)
    iam.create_user(UserName="reader")
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    rights = [{"Effect": "Allow", "Action": ["s3:*"], "Resource": "*"}]
    policy = json.dumps({"Version": "2012-10-17", "Statement": rights})
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
    check(moto, "0")
    yield {"id": key["AccessKeyId"], "secret": key["SecretAccessKey"]}
    check(moto, "inf")
    iam.delete_user_policy(UserName="reader", PolicyName="read")
    iam.delete_access_key(UserName="reader", AccessKeyId=key["AccessKeyId"])
    iam.delete_user(UserName="reader")


def check(port: int, requests: str) -> None:
    """Check the rights of all requests but the first ones."""
    url = f"http://127.0.0.1:{port}/moto-api/reset-auth"
    kind = {"Content-Type": "text/plain"}
    request = urllib.request.Request(url, data=requests.encode(), headers=kind)
    urllib.request.urlopen(request, timeout=30).close()


def test_right_and_wrong_credentials(
    run: Run, locked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = run.refused("s3://pets/data")
    assert "InvalidAccessKeyId" in unknown.message
    assert unknown.fix.startswith("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", locked["id"])
    wrong = run.refused("s3://pets/data")
    assert "SignatureDoesNotMatch" in wrong.message
    assert "secret" not in wrong.message
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", locked["secret"])
    assert run("s3://pets/data") == DATA


def test_without_credentials_only_what_is_public_is_read(
    run: Run, moto: int, between: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_of(moto).put_object(Bucket="pets", Key="open/x", Body=b"x", ACL="public-read")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert run("s3://pets/open") == {"x": b"x"}
    assert not [each for each in between.seen if "Authorization" in each.headers]
    run.folder.joinpath("x").unlink()
    error = run.refused("s3://pets/data")
    assert (error.code, error.fix) == (
        MISTAKE, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where you run kit",
    )  # fmt: skip


def test_half_of_the_credentials(run: Run, endpoint: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "unknown")
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in run.refused("s3://pets/data").fix
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    error = run.refused("s3://pets/data")
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in error.fix


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_session_token_and_region_reach_the_server(
    run: Run, between: Relay, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run("s3://pets/data/a.txt")
    assert "/us-east-1/s3/" in between.seen[0].headers["Authorization"]  # Without a region.
    between.seen.clear()
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-a-session")
    monkeypatch.setenv(name, "eu-central-1")
    run("s3://pets/data/deep/er/b.bin")
    assert {each.headers["X-Amz-Security-Token"] for each in between.seen} == {"of-a-session"}
    assert "/eu-central-1/s3/" in between.seen[0].headers["Authorization"]


def test_an_endpoint_with_a_name_gets_the_bucket_in_the_path(
    run: Run, between: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", between.address.replace("127.0.0.1", "localhost"))
    run("s3://pets/data/a.txt")
    assert {each.path.split("?")[0] for each in between.seen} == {"/pets", "/pets/data/a.txt"}


# ---- faults of the way


def test_a_server_that_does_not_listen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    error = run.refused("s3://pets/data")
    assert "Could not connect to the endpoint URL" in error.message
    assert "AWS_ENDPOINT_URL" in error.fix
    assert error.code == FAILURE
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    assert "AWS_ENDPOINT_URL" in run.refused("s3://pets/data").fix


def test_a_cut_object_goes_on_where_it_was_cut(run: Run, between: Relay) -> None:
    cuts = iter([1_500_000, 1_000_000])

    def cut(request: Request, content: bytes) -> bytes:
        return content[: next(cuts, None)] if request.path.endswith("/big") else content

    between.change = cut
    assert run("s3://pets/big") == {"big": BIG}
    assert between.starts("/big") == [0, 1_500_000, 2_500_000]


def test_the_next_try_downloads_only_what_is_missing(
    run: Run, between: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "WORKERS", 1)
    between.change = lambda request, content: (
        content[:100] if request.path.endswith("b.bin") and not request.start else
        b"" if request.path.endswith("b.bin") else content
    )  # fmt: skip
    error = run.refused("s3://pets/data")
    assert "continues where it ended" in error.fix
    between.seen.clear()
    between.change = lambda _, content: content
    assert run("s3://pets/data") == DATA
    assert between.starts("b.bin") == [100]
    assert between.starts("a.txt") == []


def test_a_program_that_is_killed_goes_on(tmp_path: Path, between: Relay) -> None:
    goes_on = threading.Event()

    def pause(request: Request, content: bytes) -> bytes:
        if request.path.endswith("/big") and not request.start:
            return content[: 3 * 2**20]  # The rest is asked for at once.
        if request.path.endswith("/big"):
            goes_on.wait(60)
        return content

    between.change = pause
    words = ["-m", "trainer.datasets.store", "--store", str(tmp_path / "store"), "add", "pets"]
    with subprocess.Popen([sys.executable, *words, "s3://pets/big"], cwd=ROOT) as program:
        wait_until(lambda: len(between.starts("/big")) > 1, "the second request", 60)
        program.kill()
    goes_on.set()
    assert index(tmp_path / "store") == {}
    between.seen.clear()
    found = call(tmp_path, "add", "pets", "s3://pets/big")
    assert found.returncode == 0, found.stderr
    assert between.starts("/big") == [3 * 2**20]
    place = Place(tmp_path / "store", "pets", 1)
    assert (place.data / "big").read_bytes() == BIG
    assert (place.data / "big").stat().st_nlink == 1


def test_an_object_that_has_changed_is_not_mixed(run: Run, moto: int, between: Relay) -> None:
    client = client_of(moto)
    client.put_object(Bucket="pets", Key="moving", Body=b"1" * 3000)
    between.change = lambda request, content: (
        content[:1000] if request.path.endswith("moving") and not request.start else b""
        if request.path.endswith("moving") else content
    )  # fmt: skip
    run.refused("s3://pets/moving")
    client.put_object(Bucket="pets", Key="moving", Body=b"2" * 3000)
    between.change = lambda _, content: content
    assert run("s3://pets/moving") == {"moving": b"2" * 3000}


def test_an_object_that_changes_meanwhile_is_refused(run: Run, moto: int, between: Relay) -> None:
    client = client_of(moto)
    client.put_object(Bucket="pets", Key="moving", Body=b"1" * 3000)

    def change(request: Request, content: bytes) -> bytes:
        if "list-type" in request.path:
            client.put_object(Bucket="pets", Key="moving", Body=b"2" * 3000)
        return content

    between.change = change
    assert "it has changed meanwhile: try again" in run.refused("s3://pets/moving").fix


def test_damage_on_the_way_is_found_by_the_checksum(run: Run, moto: int, between: Relay) -> None:
    content = b"checked" * 1000
    client_of(moto).put_object(
        Bucket="pets", Key="checked", Body=content, ChecksumAlgorithm="SHA256"
    )
    faults = iter([b"damaged"])
    between.change = lambda request, content: (
        next(faults, content[:7]) + content[7:] if request.path.endswith("checked") else content
    )
    assert run("s3://pets/checked") == {"checked": content}
    assert between.starts("checked") == [0, 0]


def test_progress_is_shown_inside_an_object(
    run: Run, between: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "EVERY", 0.02)
    waits = threading.Event()

    def slow(request: Request, content: bytes) -> bytes:
        if request.path.endswith("/big"):
            if not request.start:
                return content[:2_000_000]
            waits.wait(10)
        return content

    between.change = slow
    threading.Timer(2, waits.set).start()
    run("s3://pets/big")
    assert ("downloading", 2_000_000, len(BIG)) in run.reports
    assert run.reports[-1] == ("downloading", len(BIG), len(BIG))


@pytest.mark.usefixtures("endpoint")
def test_room_is_looked_at_before(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "room", lambda _: 1000)
    error = run.refused("s3://pets/data")
    assert "has room for 1.0 kB, and 1.0 kB are needed" in error.message
    assert not list(run.kept.iterdir())


@pytest.mark.usefixtures("endpoint")
def test_a_failed_version_does_not_appear(tmp_path: Path) -> None:
    found = call(tmp_path, "add", "pets", "s3://pets/nothing", "--json")
    assert found.returncode == MISTAKE
    assert json.loads(found.stdout.splitlines()[-1])["state"] == "failed"
    assert index(tmp_path / "store") == {}


def test_without_the_library(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    error = run.refused("s3://pets/data")
    assert str(error).startswith("boto3 is not installed; pip install boto3, or build the")
