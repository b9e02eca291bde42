"""HTTP on our own transport: client, server exchange, webhooks."""
