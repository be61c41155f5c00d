"""The models that are loaded, each in an engine process. Runs in the server process."""
