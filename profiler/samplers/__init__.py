"""Periodic readings from outside the trainer: GPUs, host, GIL."""
