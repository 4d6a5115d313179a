"""What the reports of commands show: predictions, differences, rewrites, traces, plans."""
