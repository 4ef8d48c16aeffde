"""Reproductions of papers, benchmarks and checks of the theory; imported by the command line only."""
