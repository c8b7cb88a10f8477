"""A job holds one live session: which of its gangs held one is forgotten."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("uq_sessions_live_gang", "sessions")
    live = sa.text("state IN ('assembling', 'running', 'ending')")
    op.create_index(
        "uq_sessions_live_job", "sessions", ["job_id"], unique=True, sqlite_where=live, postgresql_where=live
    )
    op.drop_column("sessions", "gang")
