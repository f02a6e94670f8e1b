"""Figures of a run for TensorBoard, wandb and trackio, from its events, each in a process of its own."""
