"""Endpoints of sessions: the sessions themselves, branches, files, grants and shared links."""
