"""A package, so that servers that its files share end with the last of them."""
