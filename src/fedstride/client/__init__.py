"""What runs where the data is, in the order of the local loop: objective, gradient, drift, step; then local."""
