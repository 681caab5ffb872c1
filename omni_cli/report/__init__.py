"""Records as text, JSON, Markdown, JUnit and HTML. Computes nothing and runs nothing."""
