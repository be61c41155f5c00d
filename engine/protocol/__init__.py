"""What the server process and an engine process say to each other. Runs in both."""
