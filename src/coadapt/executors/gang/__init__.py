"""The gang: all replicas of one attempt, wherever they run, as a pure state machine; no input or output, no clock, no process."""
