"""Columns of blobs."""
