"""Records as one HTML page: no script, no network, light and dark, with a text alternative for every figure.

Records come from anywhere: their text reaches the page through Jinja's escaping or as text of an SVG, never as markup.
"""
