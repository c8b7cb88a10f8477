"""Leases are counted renewals that a server watches: no deadline is stored, so that no clock can be wrong about it."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("members", sa.Column("renewals", sa.Integer(), nullable=False, server_default="0"))
    op.drop_column("members", "lease_until")
    op.drop_column("sessions", "due_at")
    op.create_table(
        "pulse",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("beats", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_pulse"),
    )


def downgrade() -> None:
    op.drop_table("pulse")
    # An earlier release gives every live session new time when it starts.
    op.add_column(
        "sessions",
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False, server_default="2000-01-01 00:00:00+00:00"),
    )
    op.add_column(
        "members",
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False, server_default="2000-01-01 00:00:00+00:00"),
    )
    op.drop_column("members", "renewals")
