"""What all endpoints share: HTTP and WebSocket protocols, listeners, limits, CORS and query parameters."""
