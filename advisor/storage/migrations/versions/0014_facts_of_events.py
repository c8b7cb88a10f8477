"""What events tell as data: nothing has to be read out of their sentences."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("events", sa.Column("facts", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("events", "facts")
