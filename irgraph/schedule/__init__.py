"""Schedules: timelines of host threads and device streams, and their analysis."""
