"""The texts for training and evaluating the shipped model: seeded, and all written by us."""
