"""External formats: GGUF files and their names, OCI names, JSON schemas, ECMAScript's regular
expressions."""
