"""What stands in for an accelerator, so that a capture shows the calls of one."""
