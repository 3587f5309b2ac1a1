"""What runs a pipeline on a schedule."""
