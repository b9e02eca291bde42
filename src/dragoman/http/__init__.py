"""HTTP on our own transport: connections, addresses, responses, signed webhooks."""
