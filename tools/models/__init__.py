"""The builder of the shipped model and of those for tests and benchmarks. Not in the wheel."""
