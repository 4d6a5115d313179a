"""Damaged files of every format, and odd options, for every command."""
