"""Jobs that were given more budget after they had ended."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("continued_at", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("jobs", "continued_at")
