"""Degraded modes: what is done without while much goes wrong, or while an operator or a schedule says so.

mode.py       the four modes, which one holds, and when it changes by itself: pure
store.py      where the mode is kept: mode/state.json, repeated in the alerts' document
settings.py   the section MODES of the settings
"""
