"""Tables and files that commands write."""
