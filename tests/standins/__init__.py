"""What stands in for the world outside: an endpoint, a shop, a repository of two features, tiny models."""
