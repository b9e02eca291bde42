"""What all endpoints stand on: HTTP and WebSocket protocols, listeners, limits, CORS and query parameters."""
