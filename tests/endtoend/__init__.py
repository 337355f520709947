"""Whole clusters: what users and administrators see, with real daemons, commands and kills."""
