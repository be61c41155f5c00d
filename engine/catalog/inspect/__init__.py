"""What model files say, read by a child of the server process, as a file may be hostile."""
