"""The meter: what readers have paid for each file since it was written, against what a rewrite of it costs."""
