"""`dragoman teams`: the folder of teams, and what teams do."""
