"""Learned kernel times: an MLP a family over a roofline bound, trained with JAX, run with numpy.

``features`` turns sizes and a device into numbers, ``launch`` takes the host's share out of
measured times, ``train`` (JAX, Flax, Optax) writes weights, ``infer`` reads them without either.
"""
