"""Mutants: copies of the source with one formula broken, which tests and laws must notice. `make test-mutants` runs all."""
