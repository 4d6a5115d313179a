"""One command a file, found by its name: ``irgraph.cli.discovery`` says what it must hold."""
