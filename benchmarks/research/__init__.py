"""Synthetic tables and their lives, for benchmarks of policies and windows. Nothing here ships."""
