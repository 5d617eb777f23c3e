"""Fitting a network, in a way that survives kills and runs on several processes."""
