"""Conversations: messages that outlive the process, and the window of them that fits a model."""
