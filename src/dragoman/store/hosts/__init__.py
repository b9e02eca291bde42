"""What hosts that share a database have in it: themselves, their rates, signals and queued runs."""
