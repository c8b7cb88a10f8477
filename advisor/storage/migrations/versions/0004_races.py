"""Races: several blocks of a session are measured at one time, the arms of a race."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_ISSUED = sa.text("state = 'issued'")
_ISSUED_FIRST = sa.text("state = 'issued' AND arm = 0")


def upgrade() -> None:
    op.execute("ALTER TABLE blocks RENAME COLUMN round TO race")
    op.add_column("blocks", sa.Column("arm", sa.Integer(), nullable=False, server_default="0"))
    op.drop_index("uq_blocks_issued_session", table_name="blocks")
    op.create_index(
        "uq_blocks_issued_session",
        "blocks",
        ["session_id"],
        unique=True,
        sqlite_where=_ISSUED_FIRST,
        postgresql_where=_ISSUED_FIRST,
    )


def downgrade() -> None:
    op.drop_index("uq_blocks_issued_session", table_name="blocks")
    op.create_index(
        "uq_blocks_issued_session",
        "blocks",
        ["session_id"],
        unique=True,
        sqlite_where=_ISSUED,
        postgresql_where=_ISSUED,
    )
    op.drop_column("blocks", "arm")
    op.execute("ALTER TABLE blocks RENAME COLUMN race TO round")
