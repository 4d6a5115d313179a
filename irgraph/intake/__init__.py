"""Reads what commands wrote for a team's database, and leaves out what is private.

``intake.read.entries`` tells a file by what it holds; there is a file here for each kind.
"""
