"""Jobs that are found by name and label, that are paused, and that are archived."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_STATES = ("queued", "running", "cancelling", "finished", "failed", "cancelled")
_MORE_STATES = ("queued", "running", "paused", "cancelling", "finished", "failed", "cancelled")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("name", sa.Text(), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("archived_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "labels",
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.id", name="fk_labels_job_id"), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "key", name="pk_labels"),
    )
    op.create_index("ix_labels_key_value", "labels", ["key", "value"])
    op.create_index("ix_jobs_owner", "jobs", ["owner"])
    op.create_index("ix_jobs_name", "jobs", ["name"])
    _change_states(_STATES, _MORE_STATES)
    connection = op.get_bind()
    for serial, spec in connection.execute(sa.text("SELECT serial, spec FROM jobs")).all():
        name = json.loads(spec).get("name", "")
        connection.execute(
            sa.text("UPDATE jobs SET name = :name WHERE serial = :serial"), {"name": name, "serial": serial}
        )


def downgrade() -> None:
    op.execute("UPDATE jobs SET state = 'queued' WHERE state = 'paused'")
    _change_states(_MORE_STATES, _STATES)
    op.drop_index("ix_jobs_name", table_name="jobs")
    op.drop_index("ix_jobs_owner", table_name="jobs")
    op.drop_table("labels")
    op.drop_column("jobs", "archived_at")
    op.drop_column("jobs", "name")


def _change_states(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    told, wanted = _tell(before), _tell(after)
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        op.drop_constraint(op.f("ck_jobs_state"), "jobs", type_="check")
        op.create_check_constraint(op.f("ck_jobs_state"), "jobs", wanted)
        return
    # SQLite changes no constraint. Making the table anew would need foreign keys switched off, which no transaction
    # can do; changing its words is what SQLite's manual says for constraints (lang_altertable, section 7).
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    changed = connection.execute(
        sa.text("UPDATE sqlite_master SET sql = replace(sql, :told, :wanted) WHERE name = 'jobs'"
                " AND type = 'table' AND instr(sql, :told) > 0"),
        {"told": told, "wanted": wanted},
    )  # fmt: skip
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
    if changed.rowcount != 1:
        raise RuntimeError(f"The table of jobs has no constraint that says {told}: it was changed by hand.")


def _tell(states: tuple[str, ...]) -> str:
    return f"state IN ({', '.join(repr(state) for state in states)})"
