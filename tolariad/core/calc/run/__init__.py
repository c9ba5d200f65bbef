"""Exit codes and the plan of cores."""
