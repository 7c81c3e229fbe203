"""What is known of language models: the shapes of messages, tokens, quoting."""
