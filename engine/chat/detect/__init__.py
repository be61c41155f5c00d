"""How a model writes its answers, found out from its template. Runs in the template processes."""
