"""Names of compiled code in a model."""

CALL = "inductor.call"
"""Op that calls compiled code; its body contains kernels, libraries' ops, and views."""
KERNEL = "inductor.kernel"
"""Op of a kernel that Inductor generates; its body contains the ops that it computes."""
