"""The device calls of a running step: their recorder, and corrections of its recording."""
