"""File formats that tables and engine share. Bytes in, bytes out."""
