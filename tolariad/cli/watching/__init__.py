"""`tolaria watch`: a run on the whole screen of a terminal, or as lines."""
