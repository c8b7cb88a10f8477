"""Pages: a long list in parts, each with a cursor that says where the next one begins."""

import base64
import binascii
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from advisor.errors import InvalidRequest
from advisor.storage.page_sizes import Part

Item = TypeVar("Item")


_LAST_NUMBER = 2**63 - 1
"""Nothing in a database has a larger number."""


def cut_page(found: Part[tuple[int, Item]] | Part[tuple[str, Item]]) -> tuple[tuple[Item, ...], str | None]:
    """Return the items of a page and the cursor of the next one; None on the last page.

    Each item comes with its place in the list: what it is found by.
    """
    cursor = _write_cursor(str(found[-1][0])) if found.has_more else None
    return tuple(item for _, item in found), cursor


def read_cursor(cursor: str | None) -> int | None:
    """Return the number of the last item before the page; None for the first page.

    Raises InvalidRequest for a cursor that no page gave.
    """
    place = read_place(cursor)
    if place is None:
        return None
    if not place.isascii() or not place.isdigit() or int(place) > _LAST_NUMBER:
        raise _refuse()
    return int(place)


def cut_side_by_side(found: Sequence[Part[Any]], cursor: str | None) -> str | None:
    """Return the cursor of the next page of several lists that are read side by side; None on the last page.

    `found` are items of each, with their places, after the page that `cursor` follows.
    """
    before = read_cursors(cursor, len(found))
    last = [part[-1][0] if part else place for part, place in zip(found, before, strict=True)]
    return _write_cursor(" ".join(map(str, last))) if any(part.has_more for part in found) else None


def read_cursors(cursor: str | None, count: int) -> list[int]:
    """Return the number of the last item before the page in each of so many lists; -1: nothing of it was shown.

    Raises InvalidRequest like `read_cursor`.
    """
    place = read_place(cursor)
    if place is None:
        return [-1] * count
    numbers = place.split(" ")
    if len(numbers) != count or not all(re.fullmatch(r"-1|[0-9]{1,18}", number) for number in numbers):
        raise _refuse()
    return [int(number) for number in numbers]


def read_moment(cursor: str | None) -> tuple[datetime, str] | None:
    """Return the moment and the id of the last item before the page. Raises InvalidRequest like `read_cursor`."""
    place = read_place(cursor)
    if place is None:
        return None
    moment, _, item_id = place.partition(" ")
    try:
        at = datetime.fromisoformat(moment)
        if at.tzinfo is None:
            raise _refuse()
        return at.astimezone(UTC), item_id
    except (ValueError, OverflowError):
        raise _refuse() from None


def read_place(cursor: str | None) -> str | None:
    """Return the place of the last item before the page. Raises InvalidRequest like `read_cursor`."""
    if not cursor:
        return None
    try:
        return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        raise _refuse() from None


def _refuse() -> InvalidRequest:
    return InvalidRequest("The cursor is none that a page gave.", hint="Start again without a cursor.")


def _write_cursor(place: str) -> str:
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")
