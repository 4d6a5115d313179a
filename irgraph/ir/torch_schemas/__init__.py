"""torch's own schema strings, and what writes them from an installed torch."""
