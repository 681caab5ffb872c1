"""Request bodies, with OpenAI's field names.

Unsupported fields that would change the answer are rejected by name, and so are unknown ones, because a typo must not
run with a default. Fields that only concern OpenAI's own bookkeeping are accepted and ignored.
"""
