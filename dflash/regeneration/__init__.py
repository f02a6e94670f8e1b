"""Answers written anew: the target, here or behind an endpoint, answers the prompts of a data file itself."""
