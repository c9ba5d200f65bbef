"""Everything of torch that has no public name and is used here, with a public way beside each.

Torch may change a private name in any release. So no other module of the trainer uses one. Each function here says what
it does, and does it by the private name if torch has that, else the public way. The public way may be slower or know
less; the function's docstring says how. docs/versions.md lists all of them.

`TOLARIAD_TORCH=public` in the environment chooses the public ways, also if the private names are there: to see whether
a fault comes from one of them. Tests run both ways.

Promise: training computes the same bits either way.
"""
