"""Cost models: device sheets, kernel families and host overheads. Each is a file to add."""
