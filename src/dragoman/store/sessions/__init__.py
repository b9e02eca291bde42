"""Sessions, their messages and branches, who may read them, and the search over them."""
