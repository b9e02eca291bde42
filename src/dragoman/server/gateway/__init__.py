"""The gateway: OpenAI and Anthropic clients in, any provider behind."""
