"""Several gangs of one job side by side, and the strategies that similar earlier jobs confirmed."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_LIVE = sa.text("state IN ('assembling', 'running', 'ending')")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("earlier", sa.Text(), nullable=True))
    op.add_column("sessions", sa.Column("gang", sa.Integer(), nullable=False, server_default="0"))
    op.drop_index("uq_sessions_live_job", table_name="sessions")
    op.create_index(
        "uq_sessions_live_gang",
        "sessions",
        ["job_id", "gang"],
        unique=True,
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    )


def downgrade() -> None:
    op.drop_index("uq_sessions_live_gang", table_name="sessions")
    op.create_index(
        "uq_sessions_live_job",
        "sessions",
        ["job_id"],
        unique=True,
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    )
    op.drop_column("sessions", "gang")
    op.drop_column("jobs", "earlier")
