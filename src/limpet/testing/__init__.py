"""For people who write backends: the conformance suite and the crash harness."""
