"""Models from Kineto traces: alone, or joined with an execution trace."""
