"""HTTP of the hub: the client transport, requests and WebSockets over ASGI, checks of origins, webhooks."""
