"""Checks of a script before anything runs."""
