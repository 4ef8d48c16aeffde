"""A run from start to end: checks, rounds, guard, history, checkpoints, result."""
