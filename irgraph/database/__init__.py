"""A team's database: host overheads, kernel measurements and steps, with their provenance.

What is stored are records, each with the figures that it holds as rows. SQLAlchemy and Alembic, the
extra ``db``, are imported when a database is opened, not with this package.
"""
