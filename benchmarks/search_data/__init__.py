"""What the search benchmark works on and with: pools of tools, their readers, engines and figures."""
