"""Studies and benchmarks that take minutes: each is a package with a command of its own."""
