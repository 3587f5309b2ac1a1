"""Figures of how well pipelines and robots work: success and retry rates, durations, errors, levels, targets.

facts.py       what each run contributes to the figures
sheet.py       the facts of one segment's runs
snapshots.py   keeps sheets in kpi/, so that only new runs are read
figures.py     rates, levels and missed targets of steps and pipelines
metrics.py     the figures, and more, for Prometheus
plot.py        the figures as a picture

Everything is counted from the ledgers (`retake.runs.history`), by the time of each event. docs/kpi.md explains each
figure.
"""
