"""The door for clients of OpenAI's Responses API, with the state that its clients refer to."""
