"""Runs migrations on the connection, and in the transaction, that ``schema.upgrade`` gives."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
