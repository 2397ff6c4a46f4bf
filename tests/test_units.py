import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright.errors import SpecError
from meshwright.text.units import (
    exact_bandwidth,
    exact_seconds,
    format_bandwidth,
    format_bytes,
    format_seconds,
    format_size,
    in_bits,
    parse_bandwidth,
    parse_bytes,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0B", 0), ("512B", 512), ("2GiB", 2**31), ("2 GB", 2 * 10**9), ("1.5KiB", 1536), ("64MiB", 2**26)],
)
def test_bytes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("8GB/s", 8e9), ("20Mbit/s", 2.5e6), ("400Gbps", 5e10), ("1GiB/s", 2**30), ("2.5e2 MB/s", 2.5e8)],
)
def test_bandwidth(text: str, value: float) -> None:
    assert parse_bandwidth(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("20us", 2e-5), ("20\u00b5s", 2e-5), ("20\u03bcs", 2e-5), ("1.5 ms", 1.5e-3), ("500ns", 5e-7), ("0s", 0.0)],
)
def test_seconds(text: str, value: float) -> None:
    assert parse_seconds(text) == value


@pytest.mark.parametrize("text", ["", "8", "GB", "8 XB", "-8GB", "8GB/s", "1.5B", "8gb", "1,5GB", "nanGB", "infGB"])
def test_malformed_bytes_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"bytes|size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["8GB", "8Gb/s", "8gb/s", "0GB/s", "-1GB/s", "fast"])
def test_malformed_bandwidths_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="bandwidth"):
        parse_bandwidth(text)


@pytest.mark.parametrize(
    ("text", "hint"), [("8Gb/s", "Gbit/s for bits"), ("8gb/s", "GB/s for bytes"), ("8KB/s", "KiB/s")]
)
def test_ambiguous_units_get_a_hint(text: str, hint: str) -> None:
    with pytest.raises(SpecError, match=hint):
        parse_bandwidth(text)


def test_a_missing_unit_is_named_and_an_example_given() -> None:
    with pytest.raises(SpecError, match=r"'8' is not a bandwidth: it has no unit; write it like 8GB/s"):
        parse_bandwidth("8")


@given(st.integers(0, 2**60))
@example(10 * 2**50)
@example(3 * 2**57 + 2**47)
def test_formatted_bytes_parse_back_exactly(value: int) -> None:
    assert parse_bytes(format_bytes(value)) == value


@given(st.floats(1e-3, 1e16), st.booleans())
def test_formatted_bandwidths_parse_back_to_three_digits(value: float, bits: bool) -> None:
    text = format_bandwidth(value, bits)
    assert parse_bandwidth(text) == pytest.approx(value, rel=5.1e-3)
    assert in_bits(text) is bits


@given(st.floats(1e-12, 1e6))
def test_formatted_seconds_parse_back_to_three_digits(value: float) -> None:
    assert parse_seconds(format_seconds(value)) == pytest.approx(value, rel=5.1e-3)


@given(st.floats(1e-29, 1e29), st.booleans())
@example(204.8e9, False)
@example(2571064.5817262535, True)
def test_what_files_have_is_read_back_exactly(value: float, bits: bool) -> None:
    assert parse_bandwidth(exact_bandwidth(value, bits)) == value
    assert parse_seconds(exact_seconds(value)) == value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2GB", "2GB"),
        ("2GiB", "2GiB"),
        ("1.25GB", "1.25GB"),
        ("1500MB", "1.5GB"),
        ("64KiB", "64KiB"),
        ("1000B", "1kB"),
        ("1024B", "1KiB"),
        ("999B", "999B"),
        ("1023KiB", "1023KiB"),
        ("766872.539kB", "731MiB"),
        ("0B", "0B"),
    ],
)
def test_sizes_are_shown_in_the_units_that_they_were_written_in(text: str, shown: str) -> None:
    assert format_size(parse_bytes(text)) == shown


def test_no_figure_is_rounded_to_a_thousand_of_a_smaller_unit() -> None:
    assert [format_seconds(value) for value in (0.9996, 0.99949, 9.996e-7)] == ["1s", "999ms", "1us"]
    assert [format_bandwidth(value) for value in (999.6e6, 999.4e6, 1.2345e18)] == ["1GB/s", "999MB/s", "1234PB/s"]
    assert format_bytes(2 * 10**9) == "2GB"
