"""Benches: claims about speed, measured side by side in one run. One file per bench."""
