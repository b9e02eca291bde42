"""HTTP endpoints, and who may use them."""
