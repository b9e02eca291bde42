"""Ready-made hooks: paths, secrets, redaction, rate limits, audit."""
