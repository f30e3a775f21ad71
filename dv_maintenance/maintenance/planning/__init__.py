"""From a snapshot and a policy to a plan: what is worth doing, in which order, and why."""
