"""Skills of teams: loaded by a run when it needs them, and found elsewhere, added by an approval."""
