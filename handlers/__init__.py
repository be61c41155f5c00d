"""The HTTP API: one module per tag of the description, one function per operation."""

if __name__ != "specllama.handlers":
    raise ImportError("this folder is the package specllama.handlers")
