"""The API reference: the OpenAPI document and the page drawn from it."""
