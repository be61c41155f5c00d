"""From the text of an answer to content, thoughts and calls. Runs in the server process."""
