"""Values that a program reads although a meta tensor has none: assumptions, one line each."""
