"""specllama: a llama-server whose OpenAPI description is its source."""

__version__ = "0.1.0"
