"""Lists of public names, one a line."""
