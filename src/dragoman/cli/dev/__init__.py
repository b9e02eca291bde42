"""`dragoman dev`: serves a git repository as spoke and runner, with a worktree and an agent per task."""
