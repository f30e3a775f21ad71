"""Fragments of Lance datasets, through Lance's own library."""
