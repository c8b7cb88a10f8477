"""When a member was last heard of, which tells what its session cost; how many steps it had made told nobody."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("members", sa.Column("heard_at", sa.DateTime(timezone=True), nullable=True))
    op.drop_column("members", "steps")


def downgrade() -> None:
    op.add_column("members", sa.Column("steps", sa.Integer(), nullable=True))
    op.drop_column("members", "heard_at")
