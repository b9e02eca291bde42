"""What teams have in the database: tasks, triggers, memories and vaults."""
