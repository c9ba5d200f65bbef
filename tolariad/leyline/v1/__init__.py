"""Code that protoc generated from proto/tolariad/leyline/v1. `make proto` writes it; import from tolariad.leyline."""
