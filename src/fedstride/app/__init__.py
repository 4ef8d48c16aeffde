"""What people use: the command line, run folders, sweeps, reports, diagnosis, deployment."""
