"""The operator's commands (`python -m retake`): they show what is on record, and change it under the lease."""
