"""Files of lines: CSV, JSON and text, whose rows are copied as they are."""
