"""A chat that remembers whom it talks to, and loses nothing when it is killed.

Run it, say something, kill it, run it again::

    OPENAI_API_KEY=… python chat.py alice
"""

import sys

from openai import OpenAI

import limpet
from limpet.integrations.openai import Chat

INSTRUCTIONS = "You are a helpful assistant with a good memory."


def main(user: str) -> None:
    """Answer what was left unanswered, then every line of the standard input."""
    with limpet.open() as store, OpenAI() as client:
        chat = Chat(
            client,
            store.conversation(user),
            model="gpt-5-mini",
            instructions=INSTRUCTIONS,
            max_tokens=8_000,  # what is sent; all of it is kept
            reserve=1_000,
        )
        unanswered = chat.resume()
        if unanswered is not None:
            print(unanswered.text, flush=True)
        for line in sys.stdin:
            if line.strip():
                print(chat.send(line.strip()).text, flush=True)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python chat.py NAME (of whom it talks to, such as alice)")
    main(sys.argv[1])
