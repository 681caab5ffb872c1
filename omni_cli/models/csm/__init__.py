"""CSM: a backbone with a depth decoder generates codes of speech, and Mimi decodes them to a waveform."""
