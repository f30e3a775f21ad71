"""Commits to a Delta table: what they change, what they conflict with, how they are published."""
