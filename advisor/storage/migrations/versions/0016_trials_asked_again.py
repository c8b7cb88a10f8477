"""Trials that somebody wants raced once more."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("asked_again_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("trials", "asked_again_at")
