"""Text to numbers and back."""

from __future__ import annotations

import math

import pytest

from xlacompare.core import errors, units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30ms", 0.03), ("1.5 s", 1.5), ("2", 2.0), ("250us", 2.5e-4), ("3µs", 3e-6), ("2min", 120.0), ("1e-3s", 1e-3)],
)
def test_parse_duration(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "fast", "3 parsecs", "-1s", "nan", "inf", "1s2", "1,5s", "1e999s"])
def test_no_duration(text: str) -> None:
    with pytest.raises(errors.BadInputError, match="write it like"):
        units.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("64KiB", 65536), ("1.5 MiB", 1572864), ("1MB", 10**6), ("2GB", 2 * 10**9), ("7B", 7), ("0", 0)],
)
def test_parse_bytes(text: str, count: int) -> None:
    assert units.parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "64Ki", "-1", "0.5B", "1mb", "MiB"])
def test_no_size(text: str) -> None:
    with pytest.raises(errors.BadInputError, match="write it like"):
        units.parse_bytes(text)


def test_parse_bytes_range() -> None:
    found = units.parse_bytes_range("1KiB:64MiB:4")
    assert found[0] == 1024
    assert found[-1] == 64 * 2**20
    assert len(found) == 9
    assert units.parse_bytes_range("8:32") == [8, 16, 32]
    assert units.parse_bytes_range("3:20:3") == [3, 9]
    assert units.parse_bytes_range("1MiB") == [2**20]


@pytest.mark.parametrize("text", ["8:4", "0:8", "1:8:1", "1:8:x", "1:8:2:2", "a:8"])
def test_no_range(text: str) -> None:
    with pytest.raises(errors.BadInputError):
        units.parse_bytes_range(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.4249, "1.42"), (14.25, "14.2"), (142.6, "143"), (1426, "1430"), (0.0123456, "0.0123"), (9.999, "10.0"),
     (0, "0.00"), (-2.345, "-2.35"), (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "?")],
)  # fmt: skip
def test_significant(value: float, text: str) -> None:
    assert units.significant(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00142, "1.42 ms"), (1.5, "1.50 s"), (0.9996, "1.00 s"), (3.21e-6, "3.21 us"), (5e-10, "0.500 ns"),
     (0, "0.00 s"), (-0.0142, "-14.2 ms")],
)  # fmt: skip
def test_format_duration(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


def test_format_duration_interval() -> None:
    assert units.format_duration_interval(0.00142, 0.00136, 0.00149) == "1.42 ms [1.36, 1.49]"
    assert units.format_duration_interval(-2e-5, -3e-3, 2.9e-3) == "-0.02 ms [-3.00, 2.90]"
    assert units.format_duration_interval(0.001, -math.inf, math.inf) == "1.00 ms [-inf, inf]"


def test_format_bytes_and_rates() -> None:
    assert units.format_bytes(64 * 2**20) == "64.0 MiB"
    assert units.format_bytes(1024) == "1.00 KiB"
    assert units.format_bytes(1023) == "1023 B"
    assert units.format_bytes(12) == "12 B"
    assert units.format_rate(12.34e9) == "12.3 GB/s"
    assert units.format_rate(1.5e12, "FLOP/s") == "1.50 TFLOP/s"
    assert units.format_rate(12.0, "steps/s") == "12.0 steps/s"


def test_format_ratio() -> None:
    assert units.format_ratio(1.42, 1.36, 1.49) == "1.42x [1.36, 1.49]"
    assert units.format_ratio(14.21, 13.0, 15.51) == "14.2x [13.0, 15.5]"
    assert units.format_ratio(0.0123, 0.011, 0.013) == "0.0123x [0.0110, 0.0130]"


def test_an_interval_without_1_never_shows_1_as_its_end() -> None:
    assert units.format_ratio(1.0101, 1.0034, 1.0168) == "1.010x [1.003, 1.017]"
    assert units.format_ratio(1.0, 0.97, 1.03) == "1.00x [0.97, 1.03]"


def test_wide_is_printed_as_wide() -> None:
    assert units.format_ratio(1.4, 0.9, 2.2) == "1.40x [0.90, 2.20] wide"
    assert units.format_ratio(1.4, 0.0, math.inf) == "1.40x [0.00, inf] wide"


def test_format_percent() -> None:
    assert units.format_percent(0.05) == "5%"
    assert units.format_percent(0.025) == "2.5%"
