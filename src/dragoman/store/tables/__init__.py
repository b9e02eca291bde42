"""The tables, as SQLAlchemy Core."""
