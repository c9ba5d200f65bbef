"""The journal under attack, by class of fault: each class has a short form in `make test`, a full one in `make torture`."""
