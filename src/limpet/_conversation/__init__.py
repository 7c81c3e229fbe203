"""Parts of a conversation: which entries count, what the head remembers, forks."""
