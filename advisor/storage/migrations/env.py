"""Runs Fleet Advisor's migrations on the connection that `Database.migrate` hands over."""

from alembic import context

from advisor.storage.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # Optuna's own migrations use the default table's name; a shared database must not mix them up.
    version_table="advisor_alembic_version",
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
