"""Studies: is one optimizer better than another on a task, if both are tuned alike? Anyone's optimizer, anyone's task."""
