"""JSON Schemas of operations, and the check and repair of arguments."""
