"""The code of the engine process, of which there is one for each loaded model. It never runs in the
server process."""
