"""What trials teach beyond which configuration is best: for those who show a study, not for the search."""
