"""Hooks: functions called before and after each action of an agent."""
