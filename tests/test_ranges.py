# ruff: noqa: E501 - a message is one line
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import ranges
from kit.values import WrongValueError

NAMES = [
    ("gpu[001-003]", ["gpu001", "gpu002", "gpu003"]),
    ("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"]),
    ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
    ("gpu[099-101]", ["gpu099", "gpu100", "gpu101"]),
    ("r[1-2]-gpu", ["r1-gpu", "r2-gpu"]),
    ("[5-5]", ["5"]),
    ("gpu[00-01]", ["gpu00", "gpu01"]),
]
NO_NAMES = [
    ("gpu[1]", "'gpu[1]' is not a range; write one bracket, as in gpu[001-512]"),
    ("gpu[1-2", "'gpu[1-2' is not a range; write one bracket, as in gpu[001-512]"),
    ("gpu[1,3]", "'gpu[1,3]' is not a range; write one bracket, as in gpu[001-512]"),
    ("r[1-2]g[1-2]", "'r[1-2]g[1-2]' is not a range; write one bracket, as in gpu[001-512]"),
    ("gpu[3-1]", "'gpu[3-1]' runs backwards; put the smaller number first"),
    ("gpu[1-100001]", "'gpu[1-100001]' stands for 100001 hosts; at most 100000 are taken"),
    ("gpu[٣-٤]", "'gpu[٣-٤]' is not a range; write one bracket, as in gpu[001-512]"),
]
ADDRESSES = [
    ("10.0.0.[1-3]", ["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
    ("10.1.0.254-10.1.1.1", ["10.1.0.254", "10.1.0.255", "10.1.1.0", "10.1.1.1"]),
    ("gpu[1-2].lab", ["gpu1.lab", "gpu2.lab"]),
    ("10.[8-10].0.1", ["10.8.0.1", "10.9.0.1", "10.10.0.1"]),
]
NO_ADDRESSES = [
    (
        "10.0.0.1",
        "'10.0.0.1' is one address for 3 hosts; write a range, as in 10.0.0.[1-64] or "
        "10.1.0.1-10.1.2.0",
    ),
    ("10.0.0.[1-4]", "'10.0.0.[1-4]' holds 4 addresses for 3 hosts; make the two ranges equally long"),
    ("10.0.0.3-10.0.0.1", "'10.0.0.3-10.0.0.1' runs backwards; put the smaller number first"),
    ("10.0.0.1-300", "'10.0.0.1-300' is not a range of IPv4 addresses; write for example 10.1.0.1-10.1.2.0"),
    ("0.0.0.0-255.255.255.255", "'0.0.0.0-255.255.255.255' stands for 4294967296 hosts; at most 100000 are taken"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "names"), NAMES)
def test_a_range_is_expanded(pattern: str, names: list[str]) -> None:
    assert ranges.expand(pattern) == names


@pytest.mark.parametrize(("pattern", "message"), NO_NAMES)
def test_what_is_no_range_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        ranges.expand(pattern)
    assert str(caught.value) == message


@pytest.mark.parametrize(("pattern", "addresses"), ADDRESSES)
def test_addresses_are_expanded(pattern: str, addresses: list[str]) -> None:
    assert ranges.expand_addresses(pattern, len(addresses)) == addresses


@pytest.mark.parametrize(("pattern", "message"), NO_ADDRESSES)
def test_addresses_for_other_hosts_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        ranges.expand_addresses(pattern, 3)
    assert str(caught.value) == message


@given(st.integers(0, 99_999), st.integers(0, 300), st.integers(1, 7))
def test_length_and_width_are_those_of_the_range(first: int, more: int, width: int) -> None:
    names = ranges.expand(f"gpu[{first:0{width}d}-{first + more}].x")
    numbers = [name.removeprefix("gpu").removesuffix(".x") for name in names]
    assert [int(number) for number in numbers] == list(range(first, first + more + 1))
    written = max(width, len(str(first)))
    padded = written > len(str(first)) or first == 0
    assert all(len(n) == max(written if padded else 0, len(str(int(n)))) for n in numbers)
    assert len(set(names)) == len(names)


@given(st.ip_addresses(v=4), st.integers(0, 300))
def test_consecutive_addresses_have_no_gaps(first, more):  # type: ignore[no-untyped-def]
    last = int(first) + more
    if last >= 2**32:
        return
    found = ranges.expand_addresses(f"{first}-{type(first)(last)}", more + 1)
    assert [int(type(first)(address)) for address in found] == list(range(int(first), last + 1))
