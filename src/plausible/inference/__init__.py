"""Inference methods, one file each."""
