"""HTTP to engine and back: one module per tag of the description, one function per operation."""
