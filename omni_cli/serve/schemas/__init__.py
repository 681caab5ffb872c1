"""The bodies of requests, with OpenAI's field names.

What would change the answer and is not supported is refused by its name, and so is what nobody knows: a slip of the
keyboard must not run with a default. Fields that only concern OpenAI's own bookkeeping are taken and ignored.
"""
