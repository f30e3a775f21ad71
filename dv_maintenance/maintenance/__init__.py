"""Decisions and their execution: health, plan, explain or apply, verify. Independent of table formats and engines."""
