"""OpenAI's API, as the server writes it and clients read it: routes, replies, and a client."""
