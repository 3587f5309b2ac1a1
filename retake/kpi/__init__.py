"""Figures of how well pipelines and robots work: success and retry rates, durations, errors, levels, targets.

facts.py      what each run adds to the figures
sheet.py      the facts of one day's runs; snapshots.py: kept in kpi/, so that only what is new is read
figures.py    rates, levels and missed targets of steps and pipelines
metrics.py    the same and more as Prometheus reads it; plot.py: as a picture

Everything is counted from the ledgers (`retake.runs.history`) by the time of each event. docs/kpi.md explains each
figure.
"""
