"""Degraded modes: less is done while many calls fail, or while an operator or a schedule says so.

mode.py       the four modes, which one is in force, and when it changes automatically: pure
store.py      stores the mode in mode/state.json, with a copy in the alerts' document
settings.py   the section MODES of the settings
"""
