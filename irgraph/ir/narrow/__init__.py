"""Narrow formats: rows of tables, what is prepared in them, and the ops that read it."""
