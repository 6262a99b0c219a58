"""Published studies, run again: `plausible reproduce NAME` prints our numbers beside the paper's."""
