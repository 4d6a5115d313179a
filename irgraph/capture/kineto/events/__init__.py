"""Relations among the events of a Kineto trace: calls, launches and waits."""
