"""What every part stands on: rows, models, losses, errors, files."""
