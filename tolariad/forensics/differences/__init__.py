"""What differs: between two runs, and between two moments of one run. It reads journals and never writes one."""
