"""Commits to a Lance table: rewrites, deletion files, and the indices that follow."""
