"""Kernels for GPUs that add up per-example gradients and their squares without ever storing them."""
