"""The declarations, by subject. A msgspec struct has one base at the most, so they form a chain:
model, compute, sampling, embedding, catalog, serving. Their order is that of `--help`.
"""
