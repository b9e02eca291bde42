"""The tools of an agent: which it has, under which names, and how a call of one is executed."""
