"""Who may do what: keys, secrets, vaults, policy, shared links, approvals and questions."""
