"""What every node did during a block, and what speaks against an agent's node."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("blocks", sa.Column("telemetry", sa.Text(), nullable=False, server_default="[]"))
    op.add_column("agents", sa.Column("flag", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("agents", "flag")
    op.drop_column("blocks", "telemetry")
