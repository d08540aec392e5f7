"""The server: a JSON API and one web page over an index, and the same search as an MCP server."""
