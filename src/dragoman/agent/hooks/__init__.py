"""Functions asked before and after what an agent does."""
