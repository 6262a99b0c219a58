"""Dictionaries of weights: algebra, networks as functions of them, keyed random numbers."""
