"""The Delta log: its actions, segments, checkpoints and history (protocol: Delta Log Entries)."""
