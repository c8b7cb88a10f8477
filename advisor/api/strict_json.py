"""Request bodies: JSON that can be stored, shown and calculated with, or a 422, before any route sees it.

Python's own reader takes more than JSON has (NaN), integers that it cannot print, and halves of characters that it
cannot write again. Each of these would fail later, for another user: when a page shows it or a row is read. And the
framework reads `true` and `"1"` as the number 1, which the API's document does not.
"""

import json
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from advisor.api.edge.requests import note_route
from advisor.errors import InvalidRequest

LARGEST_INTEGER = 2**63 - 1
"""Databases keep no larger one."""
LARGEST_FLOAT = 1e100
"""No quantity is as large, and squares and sums of such numbers are finite."""
_MOST_DIGITS = 20
_UNFIT = ""
"""A body that no route takes."""
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
_SHAPES = bytes.maketrans(b"123456789E", b"000000000e")
"""One digit for all, and one letter before an exponent."""
_IN_FRACTION = b".00000000"
_ODD = (b"0" * len(str(LARGEST_INTEGER)), b"e00", b"e+00", b"NaN", b"Infinity", rb"\u")
"""A body without any of these, digits as in `_SHAPES`, holds small numbers and whole characters only."""


def read_json(body: bytes) -> Any:
    """Return what the body says. Raises InvalidRequest where it is no JSON, or none that can be kept."""
    try:
        text = body.decode()
        value = json.loads(text, parse_int=_read_integer, parse_float=_read_float, parse_constant=_read_float)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not UTF-8: see byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"The body is no JSON: {error.msg}, at character {error.pos}.") from error
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply.") from error
    if _HALF_CHARACTER.search(text) and not _is_text(value):
        raise InvalidRequest("The body holds half a character (a lone surrogate), which no text can have.")
    return value


class StrictRoute(APIRoute):
    """A route of the API, whose body is read by `read_json`, and has the types that the API's document says."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Return the route's handler, behind the reader."""
        handle = super().get_route_handler()
        annotation: Any = self.body_field.field_info.annotation if self.body_field else None
        expected = TypeAdapter(annotation) if self.body_field else None

        async def read_and_handle(request: Request) -> Response:
            note_route(request)
            if expected is None:
                return await handle(request)
            try:
                body = await request.body()
            except ClientDisconnect as error:
                raise HTTPException(400, "The body did not come in full.") from error
            wrong: Exception | None = None
            try:
                if body:
                    # Where the framework's own reader keeps what it read; it takes an object of the type as it is.
                    request._json = read_strictly(body, expected)
            except (InvalidRequest, RequestValidationError) as error:
                # Told once it is known that the caller may ask: the framework looks at the body after that.
                wrong, request._json = error, _UNFIT
            try:
                return await handle(request)
            except RequestValidationError:
                if wrong is not None:
                    raise wrong from None
                raise

        return read_and_handle


def make_router(prefix: str = "", tags: list[str] | None = None) -> APIRouter:
    """Return a router whose routes read their bodies strictly."""
    return APIRouter(prefix=prefix, tags=list(tags or ()), route_class=StrictRoute)


def read_strictly(body: bytes, expected: TypeAdapter[Any]) -> Any:
    """Return the body as what is expected. Raises InvalidRequest, or RequestValidationError with all that is wrong."""
    is_odd = _is_odd(body)
    if is_odd:
        read_json(body)
    try:
        return expected.validate_json(body, strict=True)
    except ValidationError as error:
        if not is_odd:
            # What is no JSON at all is said in its own words.
            read_json(body)
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in found]) from None
    except ArithmeticError as error:
        raise InvalidRequest(
            "The body holds a number too large, or too close to 0, to calculate with."
        ) from error


def _is_odd(body: bytes) -> bool:
    """Whether a body may hold what `read_json` refuses of JSON; where not, it need not be read twice."""
    # A fraction may have as many digits as it likes: eight of them are not looked at.
    shape = body.translate(_SHAPES).replace(_IN_FRACTION, b".")
    return any(odd in shape for odd in _ODD)


def _read_integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS or abs(value := int(digits)) > LARGEST_INTEGER:
        raise InvalidRequest(f"The body holds an integer beyond ±{LARGEST_INTEGER}.")
    return value


def _read_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or abs(value) > LARGEST_FLOAT:
        raise InvalidRequest(f"The body holds a number that is not finite, or is beyond ±{LARGEST_FLOAT:g}.")
    return value


def _is_text(value: Any) -> bool:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, str) and not _can_be_written(one):
            return False
    return True


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
