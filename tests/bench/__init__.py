"""Benchmarks: run by hand, they print figures and are no tests."""
