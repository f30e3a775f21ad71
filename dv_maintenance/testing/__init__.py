"""Tools for tests, the demo and benchmarks: tables made to order."""
