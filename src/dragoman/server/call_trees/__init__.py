"""Trees of calls over HTTP: the list of their roots, their nodes, and exports."""
