"""Records as one HTML page: no script, no network, light and dark, with a text alternative for every figure.

Records may come from anywhere, so their text is escaped by Jinja or is text of an SVG, never markup.
"""
