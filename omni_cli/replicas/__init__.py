"""Several engines on Ray: for a file of requests and behind a server. Imports Ray only when it is used."""
