"""Bodies without anything odd are not read twice: what is taken then is never what the whole reader refuses."""

import json

import pytest
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from advisor.api.strict_json import LARGEST_INTEGER, read_json, read_strictly
from advisor.errors import InvalidRequest


class Anything(BaseModel):
    """A message that knows none of its fields: what stands in them is nobody's business but the reader's."""


MESSAGE = TypeAdapter(Anything)
_DIGITS = st.text("0123456789", min_size=1, max_size=24)
_NUMBERS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "-", "+", "0", "00"]),
        _DIGITS,
        st.sampled_from(["", ".", ".0", ".00000000"]),
        st.one_of(st.just(""), _DIGITS),
        st.sampled_from(["", "e", "E", "e+", "E-", "e0"]),
        st.one_of(st.just(""), st.text("0123456789", max_size=4)),
    ),
)
_TEXTS = st.lists(
    st.sampled_from(
        ['"', "\\u", "\\", "d8", "D83d", "\\udc00", "é", "\x00", "\x1f", "\n", "NaN", "a", "\ufeff"]
    )
).map("".join)
_OTHERS = st.sampled_from(["NaN", "-Infinity", "Infinity", "nan", "true", "null", "[", "}", "", "//", "\xa0"])


@given(
    st.one_of(_NUMBERS, _OTHERS, _TEXTS.map(lambda text: f'"{text}"')), st.sampled_from(["utf-8", "utf-16"])
)
def test_what_is_taken_at_once_the_whole_reader_takes_as_well(value: str, encoding: str) -> None:
    body = f'{{"one":[{value}],"two":{value}}}'.encode(encoding, "surrogatepass")
    try:
        read_strictly(body, MESSAGE)
    except (InvalidRequest, RequestValidationError):
        return
    read_json(body)


@pytest.mark.parametrize(
    "value",
    [
        "1e101",
        "-1E+101",
        "0.1e103",
        "9223372036854775808",
        "-" + "9" * 30,
        "1" + "0" * 101 + ".5",
        "NaN",
        "-Infinity",
    ],
)
def test_a_number_that_cannot_be_kept_is_refused_also_where_nobody_asks_for_it(value: str) -> None:
    with pytest.raises(InvalidRequest, match=r"number|integer"):
        read_strictly(f'{{"one":[0.00000000000000000001,{value}]}}'.encode(), MESSAGE)


@pytest.mark.parametrize("broken", [b"\xff", b'"\xed\xa0\x80"', b'"\xc3"', b'"' + b"\xf5" * 4 + b'"'])
def test_no_utf8_is_refused_whether_or_not_anything_is_odd(broken: bytes) -> None:
    with pytest.raises(InvalidRequest, match="UTF-8"):
        read_strictly(b'{"one":' + broken + b"}", MESSAGE)


@pytest.mark.parametrize("depth", [50, 190, 210, 5000])
def test_what_is_nested_deeply_is_told_alike(depth: int) -> None:
    plain = b'{"one_long":' + b"[" * depth + b"]" * depth + b"}"
    said = []
    for body in (plain, plain.replace(b"one_long", rb"\u006fne")):
        try:
            read_strictly(body, MESSAGE)
        except (InvalidRequest, RequestValidationError) as error:
            said.append(repr(error))
        else:
            said.append("taken")
    assert said[0] == said[1]


def test_the_largest_integer_and_long_fractions_are_taken() -> None:
    for value in (LARGEST_INTEGER, -LARGEST_INTEGER, 0.001234567890123456789, 5e-324, 1e99):
        assert read_strictly(json.dumps({"one": value}).encode(), MESSAGE) == Anything()
