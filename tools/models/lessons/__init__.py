"""The texts that the shipped model is trained on and judged by: seeded, and all our own."""
