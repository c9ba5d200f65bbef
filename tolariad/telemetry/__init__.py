"""The daemon's log and the trainer's: formats, files of bounded size, and writers that never wait.

Promises: no caller ever waits here. A fault of a terminal or a disk costs lines, which are counted (P6).
"""
