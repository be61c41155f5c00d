"""The processing of a request between its API's dialect and the engine, for every API."""
