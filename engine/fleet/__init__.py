"""The replicas of a model, and the choice of one for each request."""
