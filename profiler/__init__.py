"""Measures a run from outside and says what limits it."""
