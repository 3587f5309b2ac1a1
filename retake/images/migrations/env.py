"""Run the migrations with Alembic, on the connection and in the transaction of retake/runs/schema.py."""

from alembic import context

given = context.config.attributes
context.configure(
    connection=given["connection"], target_metadata=given["metadata"], version_table=given["version_table"]
)
context.run_migrations()
