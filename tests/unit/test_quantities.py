"""Quantities for people: what is written, and what is read."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import JoulecastError
from joulecast.quantities import (
    NONE,
    digits,
    duration_in_words,
    duration_s,
    energies,
    joules,
    money,
    seconds,
    steady,
    step_times,
    times,
    with_range,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (190_800, "2 d 5 h")],
)
def test_durations_are_written_as_people_say_them(value, text):
    assert duration_in_words(value) == text


def test_counts_have_no_exponent():
    assert digits(32768) == "32,768" and digits(3.277e4) == "32,770" and digits(1e12)[-1] == "0"


def test_quantities_of_one_sentence_have_one_unit():
    assert times(49.6, 12.0) == ["49.6 s", "12.0 s"]
    assert times(200, 7500) == ["3 min 20 s", "2 h 5 min"]
    assert step_times(126.668, 0.01) == ["126.7 s", "0.01000 s"]
    assert energies(919, 509, 1660) == ["919 J", "509 J", "1,660 J"]
    assert energies(3.413e7, None) == ["34.1 MJ", NONE]
    assert with_range(*energies(919, 509, 1660)) == "919 J (509 to 1,660 J)"
    assert with_range(*times(200, 150, 7500)) == "3 min 20 s (2 min 30 s to 2 h 5 min)"
    assert with_range(*energies(919, None, None)) == "919 J"
    assert with_range(*money("US $", 5, 4, 6)) == "US $ 5.00 (4.00 to 6.00)"


@given(st.floats(0, 1e14) | st.sampled_from([None, math.nan, math.inf]))
def test_nothing_is_ever_written_with_an_exponent(value):
    for text in (digits(value), seconds(value), joules(value)):
        assert "e+" not in text and "nan" not in text and "inf" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("90", 90), ("90s", 90), ("30min", 1800), ("1h", 3600), ("1.5h", 5400)),
        *(("2d", 172800), ("1h30min", 5400), ("1h 30 min", 5400), ("0.5", 0.5), ("1W", 604800)),
    ],
)
def test_durations_are_read_as_people_type_them(text, expected):
    assert duration_s(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "soon", "1y", "1h30", "-5", "1h min", "5 5"])
def test_what_is_no_duration_is_answered_in_one_line(text):
    with pytest.raises(JoulecastError, match="no duration; give seconds"):
        duration_s(text)


@given(st.integers(1, 999_999_999), st.integers(-30, 30), st.integers(-8, 8))
def test_a_key_does_not_see_the_last_bits(nine_digits, size, bits):
    value = nine_digits * 10.0**size
    near = value * (1 + bits * 2**-52)
    assert steady(near) == steady(value) == pytest.approx(value, rel=1e-15)
    assert steady(-near) == -steady(value)


def test_a_key_tells_apart_what_differs():
    assert steady(1.00000001) > steady(1.0) == 1.0 == steady(0.1 + 0.2 + 0.7)
    assert steady(0.1 + 0.2 - 0.3) != 0 == steady(0.1 + 0.2 - 0.3, relative_to=0.3)
    assert steady(0.0) == 0 and steady(math.inf) == math.inf and math.isnan(steady(math.nan))
