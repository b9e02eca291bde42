"""The AI SDK's chat protocol: requests of `useChat` clients, and the UI message stream."""
