"""Who gets the agents: when an allocation ends, how long a session may last, and whose agents it was lent."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("agents", sa.Column("ends_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("sessions", sa.Column("limit_s", sa.Double(), nullable=True))
    op.add_column("sessions", sa.Column("lent_by", sa.Text(), nullable=True))
    op.create_index("ix_sessions_ended_at", "sessions", ["ended_at"])


def downgrade() -> None:
    op.drop_index("ix_sessions_ended_at", "sessions")
    op.drop_column("sessions", "lent_by")
    op.drop_column("sessions", "limit_s")
    op.drop_column("agents", "ends_at")
