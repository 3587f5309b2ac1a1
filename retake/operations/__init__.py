"""What an operator sees of the pipelines and does to them, without a command line."""
