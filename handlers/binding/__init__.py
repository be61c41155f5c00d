"""The code around Connexion, which connects the description's operations with the handlers.
README.md lists the parts of Connexion that are used, and those replaced."""
