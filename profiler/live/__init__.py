"""A run while it runs: its directory read as it grows, and what a person wants to see of it now."""
