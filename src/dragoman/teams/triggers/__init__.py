"""Triggers of teams: schedules, windows, messages, webhooks and files that give tasks."""
