"""Schedules: when everything in a step happens on host threads and device streams, and why."""
