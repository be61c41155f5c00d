"""A request on its way through the engines, the same for every API."""
