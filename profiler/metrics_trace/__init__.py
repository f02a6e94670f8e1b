"""Another trainer's metrics, one JSON object an interval, read and turned into a run (docs/import.md)."""
