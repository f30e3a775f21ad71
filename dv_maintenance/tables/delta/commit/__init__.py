"""Commits to a Delta table: their actions, their conflicts, and their publication."""
