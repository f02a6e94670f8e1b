"""One file per bottleneck; each rule is a pure function of a Timeline."""
