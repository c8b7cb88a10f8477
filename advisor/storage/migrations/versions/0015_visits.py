"""Who is signed in to the dashboard: a restart of the server signs nobody out any more."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "visits",
        sa.Column("key_sha256", sa.Text(), nullable=False),
        sa.Column("token_id", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name="fk_visits_token_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key_sha256", name="pk_visits"),
    )
    op.create_index("ix_visits_token_id", "visits", ["token_id"])


def downgrade() -> None:
    op.drop_table("visits")
