"""Reports of commands as pages: predictions, differences, rewrites, traces, plans."""
