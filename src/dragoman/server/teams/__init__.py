"""Endpoints of teams: teams, tasks, triggers and memory."""
