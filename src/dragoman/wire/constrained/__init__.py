"""Tool calls by constrained output, for models without tool calls of their own."""
