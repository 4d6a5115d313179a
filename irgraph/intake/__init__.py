"""Reads files written by commands for a team's database, and omits private data.

``intake.read.entries`` detects the kind of a file by its content; each kind has a module here.
"""
