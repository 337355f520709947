"""Launcher and supervisor: what stands between the agent and a job, and owns its exit."""
