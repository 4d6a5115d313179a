"""Runs several ranks in one process."""
