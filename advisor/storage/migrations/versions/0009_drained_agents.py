"""Agents that are drained: they finish what they hold, and take no further session until somebody resumes them."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("agents", sa.Column("drained_because", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("agents", "drained_because")
