"""Applications: command line, run folders, sweeps, reports, diagnosis and deployment."""
