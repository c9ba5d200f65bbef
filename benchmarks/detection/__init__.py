"""The study of the autopilot: `python -m benchmarks.detection` computes it and writes docs/detection-study.md.

Real trainings in plain torch loops on the CPU, healthy ones and ones with a fault. Beside the autopilot run the same
training that only records, and loops with other remedies: a skip at six sigmas, ZClip, AdaGC. Pins and rollbacks are
deep copies of the whole training, so they are exact.
"""
