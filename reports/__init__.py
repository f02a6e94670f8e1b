"""Turns runs and studies into self-contained HTML pages."""
