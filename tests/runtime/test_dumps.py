"""Only plain files of a container's volume of dumps are copied."""

import io
import tarfile

from kit.runtime.dumps import unpacked


def packed(*members: tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return stream.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, **changes: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mtime = kind, 7
    made.size = 3 if kind == tarfile.REGTYPE else 0
    for key, value in changes.items():
        setattr(made, key, value)
    return made


def test_only_plain_files_of_the_volume_itself_are_taken() -> None:
    tar = packed(
        member("./", tarfile.DIRTYPE),
        member("./nccl_trace_rank_0"),
        member("./../outside"),
        member("/etc/passwd"),
        member("./.hidden"),
        member("./below/file"),
        member("./link", tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("./hard", tarfile.LNKTYPE, linkname="./nccl_trace_rank_0"),
        member("./pipe", tarfile.FIFOTYPE),
    )
    found = list(unpacked("n1", tar))
    assert [(each.host, each.name, each.time, each.content) for each in found] == [
        ("n1", "nccl_trace_rank_0", 7, b"xxx")
    ]
