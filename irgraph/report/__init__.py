"""Tables and files that commands give to people and programs."""
