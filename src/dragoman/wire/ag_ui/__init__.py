"""The AG-UI protocol: requests of AG-UI and CopilotKit clients, and their event stream."""
