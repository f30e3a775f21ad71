"""ORC data files: read and written stripe by stripe."""
