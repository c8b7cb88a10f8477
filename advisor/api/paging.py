"""What every route that answers with a page of a list takes."""

from typing import Annotated

from fastapi import Query

Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(max_length=600, description="`next_cursor` of the page before.")]
