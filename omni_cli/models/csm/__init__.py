"""CSM: a backbone with a depth decoder makes codes of speech, Mimi makes them a waveform."""
