"""What compiled code is called in a model."""

CALL = "inductor.call"
"""A call of compiled code; its body are kernels, libraries' ops, and views."""
KERNEL = "inductor.kernel"
"""A kernel that Inductor generates; its body are the ops that it computes."""
