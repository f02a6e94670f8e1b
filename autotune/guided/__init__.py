"""The searcher with a model: physics of the pipeline, memory, and what neither of them explains."""
