"""File formats that tables and engine share: none of it knows a table format or an engine."""
