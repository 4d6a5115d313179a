"""Schedules: what happens when on host threads and device streams, and why."""
