"""The pure core: values and decisions. No input or output, no clock, no randomness, no asyncio, no torch.

Promises: the same events fold to the same state, and the same state and input give the same decision. This holds on
every machine, and in every later version. The folders are layers: calc < messages < state < queries < rules.
"""
