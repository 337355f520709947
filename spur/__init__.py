"""What users touch, and what all daemons of Spur share: commands, client, configuration."""

__version__ = "0.1.0"
