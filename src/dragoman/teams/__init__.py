"""Teams: folders of agents with rules and members, and what teams do."""
