"""The link between a program that trains and the recorder beside it: words, socket, and the start of a recorder.

A program (`Tolaria`) and its recorder are two processes. The link carries the life of the run, orders of the program,
and sentences for its log. It carries no steps: those go by the page and the channel, as for a trainer that the daemon
starts. Promise: nothing here imports torch, and the program needs nothing of the daemon.
"""
