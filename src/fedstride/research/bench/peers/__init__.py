"""The engines of the speed benchmark: plain programs, each run in a process, and where need be an environment, of its own."""
