"""All of Connexion, which binds the description's operations to the handlers; README.md lists what
of it is used, and what is replaced."""
