"""Memory of a device over a step."""
