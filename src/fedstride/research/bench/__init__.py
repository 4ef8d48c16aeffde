"""Speed, measured: every figure comes from a run that a reader can repeat with one command."""
