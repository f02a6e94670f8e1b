"""Checkpoints: directories that appear whole or not at all, and what it takes to go on from one.

step-N/
  model.safetensors, config.json    the drafter in the form that inference engines load
  optimizer.safetensors             float32 masters and moments
  state.json                        where in data and schedule, whose it is, checksums (manifest.py)

Nothing pickled. docs/checkpoints.md is the reference. Knows nothing of threads.
"""
