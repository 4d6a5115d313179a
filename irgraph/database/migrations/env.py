"""Entry point of migrations, on the connection and in the transaction of ``schema.upgrade``."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
