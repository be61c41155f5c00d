"""MCP servers, and the process that talks to one of them."""
