"""When to do the work of many tables: windows, budgets, and what runs in a night that has no time for everything."""
