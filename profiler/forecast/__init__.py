"""What a change would do to a run: throughput, memory and what limits it, before anybody tries."""
