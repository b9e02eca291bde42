"""What hosts store in the database that they share: their records, rates, signals and queued runs."""
