"""Tests that run in the guest, where systemd is real: tests/guest/test_systemd.py carries them in."""
