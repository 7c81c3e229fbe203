"""Tasks: work that resumes at the step where it stopped."""
