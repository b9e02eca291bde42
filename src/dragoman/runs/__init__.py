"""The life of a run: begin, follow, stop, resume, recover."""
