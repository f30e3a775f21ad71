"""Which versions and files of a Lance table nothing needs any more, and how they are deleted."""
