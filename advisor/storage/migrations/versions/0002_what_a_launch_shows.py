"""What the runtime saw of the script in a launch of another command."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("facts", sa.Text(), nullable=True))
