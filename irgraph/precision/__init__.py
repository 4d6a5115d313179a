"""Precision by measured numerics: what formats cost in accuracy, what they gain, which to take.

Every error is that of an execution with torch, on the user's parameters and batches where given;
every gain is simulated. The workflow (formats tried op by op, a budget, the joint plan executed
again, a monitor) is reconstructed after the abstract of Deng et al., *Low-Precision Hardware
Architectures Meet Recommendation Model Inference at Scale* (arXiv 2105.12676): no figure here is
that paper's.
"""
