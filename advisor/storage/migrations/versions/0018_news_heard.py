"""Which news of a member are kept: a beat that brings them again adds nothing."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("members", sa.Column("news", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("members", "news")
