"""The strategy (Tamiyo): it is asked after epochs, gives commands, and votes in rollbacks."""
