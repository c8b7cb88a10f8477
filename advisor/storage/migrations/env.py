"""Runs Fleet Advisor's migrations on the connection that `Database.migrate` hands over."""

from alembic import context

from advisor.storage.tables import VERSION_TABLE, Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    transactional_ddl=True,
    on_version_apply=lambda **_: context.config.attributes.get("on_step", lambda: None)(),
)
with context.begin_transaction():
    context.run_migrations()
