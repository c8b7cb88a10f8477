"""What the verdicts of earlier jobs on the same nodes say of how much launches differ, kept with a job."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("earlier_launches", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "earlier_launches")
