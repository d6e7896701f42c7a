# ruff: noqa: E501 - a message is one line
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import addresses, values
from kit.values import WrongValueError

RIGHT = [
    (values.size, "24GiB", 24 * 2**30),
    (values.size, " 1.5 GiB ", 3 * 2**29),
    (values.size, "1B", 1),
    (values.size, "512KiB", 2**19),
    (values.size, "0.5TiB", 2**39),
    (values.speed, "1Gbit", 10**9),
    (values.speed, "2.5Gbit", 2_500_000_000),
    (values.speed, "100 Mbit", 10**8),
    (values.duration, "90s", 90),
    (values.duration, "1.5m", 90),
    (values.duration, "2h", 7200),
    (values.dns_label, "a", "a"),
    (values.dns_label, "gpu-01", "gpu-01"),
    (values.dns_label, "0", "0"),
    (values.dns_label, "a" * 63, "a" * 63),
    (values.gpu_uuid, "GPU-5f3a1c9e-0d6b-4a57-9a5e-2f4b8c7d1e01", "GPU-5f3a1c9e-0d6b-4a57-9a5e-2f4b8c7d1e01"),
    (values.gpu_uuid, "MIG-GPU-5f3a1c9e/1/0", "MIG-GPU-5f3a1c9e/1/0"),
    (values.gpu_uuid, "4f6b9ae2-9f0e-5c3d-8a51-27b9c0d1e2f3", "4f6b9ae2-9f0e-5c3d-8a51-27b9c0d1e2f3"),
    (addresses.address, "192.168.8.151", "192.168.8.151"),
    (addresses.login, "u@fd00::1", "u@[fd00::1]"),
    (addresses.login, "u@[FD00::1]:22", "u@[fd00::1]:22"),
    (addresses.login, "a@b@h:22", "a@b@h:22"),
    *((addresses.login, text, text) for text in ("lab_gpu1", "4090", "ops@4090:2222", "gpu.", "büro", "x-")),
    (addresses.login, "me@fe80::1%eth0", "me@[fe80::1%eth0]"),
    (addresses.registry, "[fd00::1]:5000", "[fd00::1]:5000"),
    (addresses.registry, "[fd00::1]", "[fd00::1]"),
    (addresses.image, "[fd00::1]:5000/trainer:0.2.0", "[fd00::1]:5000/trainer:0.2.0"),
    (addresses.alertmanager, "[fd00::1]:9093", "[fd00::1]:9093"),
    (addresses.nfs_export, "[fd00::1]:/export/data", "[fd00::1]:/export/data"),
    (addresses.address, "FD00::0:1", "fd00::1"),
    (addresses.address, "::1", "::1"),
    (addresses.address, "PC1.lab", "PC1.lab"),
    (addresses.subnet, "10.200.0.0/16", "10.200.0.0/16"),
]  # fmt: skip

WRONG = [
    (values.size, "24GB", "'24GB' has the unit GB, which is not exact; write 24GiB"),
    (values.size, "16g", "'16g' has the unit g, which is not exact; write 16GiB"),
    (values.size, "8kb", "'8kb' has the unit kb, which is not exact; write 8KiB"),
    (values.size, "1tib", "'1tib' has the unit tib, which is not exact; write 1TiB"),
    (values.size, 24, "24 has no unit; write 24MiB or 24GiB"),
    (values.size, 25769803776, "25769803776 has no unit; write 24GiB"),
    (
        values.size,
        "24gigs",
        "'24gigs' has the unknown unit gigs; use KiB, MiB, GiB or TiB, for example 24GiB",
    ),
    (addresses.login, "u@h:٢٢", "'u@h:٢٢' has no usable port; write for example user1@pc1:2222"),
    (addresses.login, "192.168.8.300", "'192.168.8.300' is not an IPv4 address; write four numbers from 0 to 255"),
    (addresses.login, "a/b", "'a/b' is not a host that ssh and docker take; give it an alias of letters, digits, '.', '_' and '-' in ~/.ssh/config (`Host gpu1`)"),
    (addresses.login, "fe80::1", "fe80::1 is an address on every link; add the interface here: fe80::1%eth0 (`ip address`)"),
    (addresses.registry, "fd00::1:5000", "'fd00::1:5000' is not the address of a registry; write \"[fd00::1]:5000\""),
    (addresses.registry, "fd00::1", "'fd00::1' is not the address of a registry; write \"[fd00::1]:5000\""),
    (addresses.registry, ["fd00::1"], 'brackets without quotes are a list; write "[fd00::1]:5000"'),
    (addresses.image, "fd00::1:5000/trainer:1", "'fd00::1:5000/trainer:1' has an IPv6 address without brackets; write \"[fd00::1]:5000/trainer:1\""),
    (addresses.alertmanager, "fd00::1:9093", "'fd00::1:9093' has no brackets; write \"[fd00::1]:9093\""),
    (addresses.nfs_export, "fd00::1:/x", "'fd00::1:/x' has no brackets; write \"[fd00::1]:/x\""),
    (addresses.login, "u@[fd00::1]x", "'u@[fd00::1]x' is not a login; write for example user1@pc1"),
    *(
        (addresses.address, text, f"{text} is not the address of one machine; write the one that the other hosts reach it by (see `ip address`)")
        for text in ("255.255.255.255", "224.0.0.1", "0.0.0.0", "240.1.2.3", "ff02::1", "::", "fe80::1")
    ),
    (values.size, "big", "'big' is not a size; write for example 24GiB"),
    (values.size, "-1GiB", "'-1GiB' is not a size; write for example 24GiB"),
    (values.size, "0GiB", "'0GiB' is not a size; write for example 24GiB"),
    (values.size, "0.1B", "'0.1B' is not a size; write for example 24GiB"),
    (values.size, None, "nothing is not a size; write for example 24GiB"),
    (values.size, True, "true is not a size; write for example 24GiB"),
    (values.size, ["24GiB"], '["24GiB"] is not a size; write for example 24GiB'),
    (values.size, "9" * 25 + "TiB", "'9999999999999999999999999TiB' is not a size; write for example 24GiB"),
    (values.speed, "10", "'10' has no unit; write 10Mbit or 10Gbit"),
    (
        values.speed,
        "1Gbps",
        "'1Gbps' has the unit Gbps, but links are measured in Mbit or Gbit (per second); "
        "write for example 1Gbit",
    ),
    (
        values.speed,
        "125MB/s",
        "'125MB/s' has the unit MB/s, but links are measured in Mbit or Gbit (per second); "
        "write for example 1Gbit",
    ),
    (
        values.speed,
        "1Tbit",
        "'1Tbit' has the unit Tbit, but links are measured in Mbit or Gbit (per second); "
        "write for example 1000Gbit",
    ),
    (
        values.speed,
        "100kbit",
        "'100kbit' has the unit kbit, but links are measured in Mbit or Gbit (per second); "
        "write for example 0.1Mbit",
    ),
    (values.speed, "0Gbit", "'0Gbit' is not a link speed; write for example 1Gbit"),
    (values.speed, "0.0000000001Gbit", "'0.0000000001Gbit' is not a link speed; write for example 1Gbit"),
    (values.speed, "fast", "'fast' is not a link speed; write for example 1Gbit"),
    (values.duration, "60", "'60' has no unit; use s, m or h, for example 60s"),
    (values.duration, "2d", "'2d' has the unknown unit d; use s, m or h, for example 2s"),
    (values.duration, "0s", "'0s' is not a duration; write for example 60s"),
    (values.duration, "1h30m", "'1h30m' is not a duration; write for example 60s"),
    (addresses.address, "192.168.8.256", "'192.168.8.256' is not an IPv4 address; write four numbers from 0 to 255"),
    (addresses.address, "10.0.0.1:22", "'10.0.0.1:22' is not an address; leave the port out: 192.168.8.151"),
    (addresses.address, "a_b", "'a_b' is neither an IP address nor a host name; write for example 192.168.8.151, and an alias of ~/.ssh/config as `ssh: a_b`"),
    (addresses.address, "", "'' is neither an IP address nor a host name; write for example 192.168.8.151"),
    (
        addresses.subnet,
        "10.0.0.1/8",
        "'10.0.0.1/8' is not an IPv4 network: it has host bits set; write for example 10.200.0.0/16",
    ),
    (addresses.subnet, 10, "10 is not an IPv4 network; write for example 10.200.0.0/16"),
    (values.gpu_uuid, "GPU-5f3a…", "'GPU-5f3a…' is not a GPU's UUID; copy what `nvidia-smi -L` prints: GPU-… or MIG-…"),
    (values.gpu_uuid, "7af7a99b", "'7af7a99b' is not a GPU's UUID; copy what `nvidia-smi -L` prints: GPU-… or MIG-…"),
    (values.gpu_uuid, 0, "0 is not a GPU's UUID; copy what `nvidia-smi -L` prints: GPU-… or MIG-…"),
]  # fmt: skip

LABEL = "(at most 63 lower-case letters, digits, inner hyphens)"
WRONG_LABELS = [
    ("My_Lab", f"'My_Lab' is not a DNS label {LABEL}; write for example my-lab"),
    ("-a-", f"'-a-' is not a DNS label {LABEL}; write for example a"),
    ("", f"'' is not a DNS label {LABEL}; write for example gpu01"),
    ("ß", f"'ß' is not a DNS label {LABEL}; write for example gpu01"),
    ("a\n", f"'a\\n' is not a DNS label {LABEL}; write for example a"),
    (None, f"nothing is not a DNS label {LABEL}; write for example gpu01"),
    (5, '5 is a number, not a text; write "5", in quotes'),
]


@pytest.mark.parametrize(("parse", "text", "value"), RIGHT)
def test_a_right_value_is_understood(parse, text, value):  # type: ignore[no-untyped-def]
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    WRONG + [(values.dns_label, text, message) for text, message in WRONG_LABELS],
)
def test_a_wrong_value_is_answered_with_a_right_one(parse, text, message):  # type: ignore[no-untyped-def]
    with pytest.raises(WrongValueError) as caught:
        parse(text)
    assert str(caught.value) == message


@given(st.integers(1, 2**63 - 1))
def test_sizes_are_shown_as_they_are_read(number: int) -> None:
    assert values.size(values.show_size(number)) == number


@given(st.integers(1, 999_999), st.sampled_from([10**6, 10**9]))
def test_speeds_are_shown_as_they_are_read(number: int, unit: int) -> None:
    assert values.speed(values.show_speed(number * unit)) == number * unit


@given(st.text(max_size=70))
def test_the_suggested_name_is_a_right_one(text: str) -> None:
    try:
        assert values.dns_label(text) == text
    except WrongValueError as error:
        suggested = error.fix.removeprefix("write for example ")
        assert values.dns_label(suggested) == suggested


@given(st.text(max_size=30) | st.integers() | st.floats() | st.booleans() | st.none())
@pytest.mark.parametrize(
    "parse",
    [values.size, values.speed, values.duration, values.dns_label, values.gpu_uuid, addresses.address, addresses.subnet],
)  # fmt: skip
def test_nonsense_is_refused_in_words(parse, value):  # type: ignore[no-untyped-def]
    try:
        parse(value)
    except WrongValueError as error:
        assert error.what  # noqa: PT017 - not every value is refused
        assert error.fix  # noqa: PT017
