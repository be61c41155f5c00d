"""Benchmarks that compare whole servers."""
