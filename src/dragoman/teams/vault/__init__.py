"""Vaults of teams: secrets that operations receive and models never see."""
