"""Host overhead tables that ship, one file each, and what makes them from published sources."""
