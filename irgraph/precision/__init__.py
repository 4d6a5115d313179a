"""Precision by measured numerics: accuracy and gain of formats, and the search for the best plan.

Every error is measured by an execution with torch, on the user's parameters and batches if they are
given; every gain is simulated. The workflow (formats tried op by op, a budget, the joint plan
executed again, a monitor) is reconstructed after the abstract of Deng et al., *Low-Precision
Hardware Architectures Meet Recommendation Model Inference at Scale* (arXiv 2105.12676): no figure
here comes from that paper.
"""
