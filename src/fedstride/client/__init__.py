"""The client side: objectives, gradient estimators, drift corrections, step rules, local loop, and exchanges."""
