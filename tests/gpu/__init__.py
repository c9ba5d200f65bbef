"""`python -m tests.gpu`: everything that needs a CUDA device, in under eight minutes, on a machine without a network.

`make gpu-wheels` prepares a folder of packages that travels with the tree; `make gpu` runs on the device's machine.
"""
