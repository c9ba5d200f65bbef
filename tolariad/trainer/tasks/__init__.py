"""The built-in tasks: small, real, trained in seconds to minutes."""
