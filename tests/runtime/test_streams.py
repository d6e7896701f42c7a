"""Log streams: frames in pieces, time stamps, several sources in the order of time."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.runtime.streams import HEADER, frames, lines, merged, stamped

STAMP = "2026-11-21T16:40:32.000000001Z "
AT = 1795279232.0


def frame(content: str, kind: int = 1) -> bytes:
    data = content.encode()
    return HEADER.pack(kind, len(data)) + data


def test_frames_are_taken_apart() -> None:
    stream = io.BytesIO(frame("out\n") + frame("err\n", 2) + frame(""))
    assert list(frames(stream)) == [(False, b"out\n"), (True, b"err\n"), (False, b"")]


@pytest.mark.parametrize("cut", range(12))
def test_a_stream_that_breaks_off_ends(cut: int) -> None:
    whole, last = frame("one\n"), frame("two\n")
    assert list(frames(io.BytesIO(whole + last[:cut]))) == [(False, b"one\n")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"2026-11-21T16:40:32.5Z hello\n", (AT + 0.5, "hello")),
        (b"2026-11-21T16:40:32.123456789Z a  b \r\n", (AT + 0.123456789, "a  b ")),
        (b"2026-11-21T16:40:32Z ", (AT, "")),
        (b"2026-11-21T16:40:32Z \xff\n", (AT, "\ufffd")),
    ],
)
def test_stamps(line: bytes, expected: tuple[float, str]) -> None:
    moment, text = stamped(line)
    assert moment == pytest.approx(expected[0], abs=1e-6)
    assert text == expected[1]


def test_a_long_line_is_one_also_between_others() -> None:
    parts = [("a" * 9, 1), ("oops\n", 2), ("b" * 9, 1), ("c\n", 1), ("no end", 2)]
    stream = io.BytesIO(b"".join(frame(STAMP + text, kind) for text, kind in parts))
    expected = ["oops", "a" * 9 + "b" * 9 + "c", "no end"]
    assert [text for _, text in lines(stream)] == expected


@given(st.lists(st.lists(st.integers(0, 50)).map(sorted), max_size=5))
def test_ended_sources_come_in_order(sources: list[list[int]]) -> None:
    together = list(merged([iter(source) for source in sources], float, window=None))
    assert together == sorted(number for source in sources for number in source)


def test_a_silent_source_keeps_the_others_waiting_for_the_window_alone() -> None:
    go = threading.Event()

    def silent() -> Iterator[int]:
        assert go.wait(30)
        yield 1
        yield 5

    together = merged([silent(), iter([2, 4])], float, window=0.05)
    assert [next(together), next(together)] == [2, 4]
    go.set()
    # Late lines are not lost.
    assert list(together) == [1, 5]


def test_a_source_within_the_window_comes_first() -> None:
    go = threading.Event()

    def slow() -> Iterator[int]:
        assert go.wait(30)
        yield 1

    def quick() -> Iterator[int]:
        yield 2
        go.set()

    assert list(merged([slow(), quick()], float, window=30)) == [1, 2]


def test_what_a_source_raises_is_raised_when_all_have_ended() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    together = merged([failing(), iter([0, 2])], float)
    assert [next(together) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="gone"):
        next(together)
