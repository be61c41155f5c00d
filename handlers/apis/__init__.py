"""From a request's body to parameters, and from results to an API's format: a folder for each
API."""
