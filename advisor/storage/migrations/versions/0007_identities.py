"""Tokens that expire, are used up or belong to a team; agents that prove who they are and stay turned out; the team of
a job; keys of submissions by token instead of by label."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TOKENS = "(SELECT {what} FROM tokens WHERE agent_id IS NULL AND coalesce(nullif(label, ''), role) = owner)"


def upgrade() -> None:
    op.add_column("tokens", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("tokens", sa.Column("uses_left", sa.Integer(), nullable=True))
    op.add_column("tokens", sa.Column("team", sa.Text(), nullable=False, server_default=""))
    op.add_column("agents", sa.Column("secret_sha256", sa.Text(), nullable=True))
    op.add_column("agents", sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("team", sa.Text(), nullable=False, server_default=""))
    # A key whose label several tokens have, or none, can be found by none of them any more.
    op.execute(f"DELETE FROM idempotency_keys WHERE {_TOKENS.format(what='count(*)')} <> 1")
    op.execute(f"UPDATE idempotency_keys SET owner = {_TOKENS.format(what='id')}")
    op.execute("ALTER TABLE idempotency_keys RENAME COLUMN owner TO token_id")


def downgrade() -> None:
    op.execute("ALTER TABLE idempotency_keys RENAME COLUMN token_id TO owner")
    op.drop_column("jobs", "team")
    op.drop_column("agents", "revoked_at")
    op.drop_column("agents", "secret_sha256")
    op.drop_column("tokens", "team")
    op.drop_column("tokens", "uses_left")
    op.drop_column("tokens", "expires_at")
