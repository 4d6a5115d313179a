"""Narrow formats: rows of tables, parameters prepared in them, and the ops that read these."""
