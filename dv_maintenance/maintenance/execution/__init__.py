"""From a plan to commits: rewrite, pass the gates, commit, read back."""
