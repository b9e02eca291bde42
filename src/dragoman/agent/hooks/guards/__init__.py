"""Ready-made hooks: path guard, destructive commands, rate limit, audit log, secret scan, redaction."""
