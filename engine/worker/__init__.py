"""The engine process: one for each loaded model. Nothing in here runs in the server process."""
