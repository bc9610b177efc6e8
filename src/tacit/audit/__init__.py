"""Does it really leak no more than it claims? Attacks on tacit's own runs, and on things that are not tacit's."""
