"""Papers reproduced, benchmarks, theory checked; only the command line knows of it."""
