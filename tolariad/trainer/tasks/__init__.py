"""The tasks that come with tolariad: small, real, and trained in seconds to minutes."""
