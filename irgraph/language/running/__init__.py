"""What a running script knows and reports."""
