"""HTTP client transport: connections, addresses and proxies, responses, signed webhooks."""
