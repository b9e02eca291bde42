"""Which path is answered by which endpoint, a module for each part of the API."""
