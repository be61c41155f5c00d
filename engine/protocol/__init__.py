"""Messages between the server process and an engine process. Runs in both."""
