"""A team's database: host overheads, kernel measurements and steps, with their provenance.

A database stores records, each with its figures as rows. SQLAlchemy and Alembic, the extra ``db``,
are imported when a database is opened, not with this package.
"""
