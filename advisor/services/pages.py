"""Pages: a long list in parts, each with a cursor that says where the next one begins."""

import base64
import binascii
from collections.abc import Sequence
from typing import TypeVar

from advisor.errors import InvalidRequest

Item = TypeVar("Item")


def cut_page(found: Sequence[tuple[int, Item]], limit: int) -> tuple[tuple[Item, ...], str | None]:
    """Return the items of a page and the cursor of the next one; None on the last page.

    `found` are up to `limit` + 1 items, each with the number that it is found by.
    """
    shown = found[:limit]
    cursor = _write_cursor(shown[-1][0]) if len(found) > limit else None
    return tuple(item for _, item in shown), cursor


def read_cursor(cursor: str | None) -> int | None:
    """Return the number of the last item before the page; None for the first page.

    Raises InvalidRequest for a cursor that no page gave.
    """
    if not cursor:
        return None
    try:
        return int(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(
            "The cursor is none that a page gave.", hint="Start again without a cursor."
        ) from error


def _write_cursor(number: int) -> str:
    return base64.urlsafe_b64encode(str(number).encode()).decode().rstrip("=")
