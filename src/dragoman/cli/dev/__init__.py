"""`dragoman dev`: a git repository as spoke and runner, with a worktree and an agent for each task."""
