"""Several engines on Ray, for a file of requests or behind a server. Imports Ray only when used."""
