"""Faults planted on purpose, to see whether the diagnosis finds them: see docs/fault-injection.md.

Acts on a prepared trainer from outside. Nothing of the product imports this but the flag `--inject`.
"""
