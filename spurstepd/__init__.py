"""Launcher and supervisor: what stands between the agent and a job, and owns its exit."""

__version__ = "0.1.0"
