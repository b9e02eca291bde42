"""The AI SDK's UI message stream."""
