"""What the trainer shares with the rest: errors, knobs, configuration, events, run layout. Free of torch."""
