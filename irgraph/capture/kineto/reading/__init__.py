"""From the bytes of a Kineto trace to clean columns of events."""
