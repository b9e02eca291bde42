"""The endpoints of OpenAI's Responses API, with the state that its clients refer to."""
