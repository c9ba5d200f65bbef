"""LightningModules as tasks: `task: lightning:./file.py:Module`. Only the module's own file imports lightning."""
