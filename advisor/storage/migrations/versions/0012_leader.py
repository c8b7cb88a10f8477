"""Which of the servers on a database leads."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "leader",
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("renewals", _SERIAL, nullable=False),
        sa.PrimaryKeyConstraint("epoch", name="pk_leader"),
    )


def downgrade() -> None:
    op.drop_table("leader")
