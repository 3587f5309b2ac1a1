"""Benchmarks: tables with a ratio to a reference that is measured in the same run. `make bench` prints them all."""
