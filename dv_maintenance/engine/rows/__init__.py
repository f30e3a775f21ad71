"""Batches of rows: live ones, ordered ones, those that a condition selects."""
