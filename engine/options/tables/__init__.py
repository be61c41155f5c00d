"""The declarations, by subject. A msgspec struct has one base at the most, so the four form a
chain: model, compute, sampling, serving. Their order is that of `--help`.
"""
