"""The controller: job table, scheduling, decisions."""
