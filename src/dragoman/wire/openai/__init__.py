"""The OpenAI Chat Completions API."""
