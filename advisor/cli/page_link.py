"""Where a page of this machine's own server is, for the person who started it."""

from datetime import UTC, datetime
from pathlib import Path

from advisor.services.visits import LASTS, make_link


def address_page(url: str, data_dir: Path, page: str) -> str:
    """Return the address of a page: a link that signs in once, or where that cannot be made, the token's file."""
    try:
        secret = make_link(data_dir, datetime.now(UTC))
    except OSError:
        return f"{url}{page} (the token to sign in: {data_dir / 'admin-token'})"
    return f"{url}/enter/{secret}?next={page} (signs you in once, within {LASTS.seconds // 60} minutes)"
