"""Files that hold only columns of vectors, beside those with the other columns of the same rows."""
