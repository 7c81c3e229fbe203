"""The same as chat.py for async programs, with the reply as it comes."""

import asyncio
import sys

from openai import AsyncOpenAI

import limpet
from limpet.integrations.openai import AsyncChat, AsyncReplyStream

INSTRUCTIONS = "You are a helpful assistant with a good memory."


async def main(user: str) -> None:
    """Answer what was left unanswered, then every line of the standard input."""
    async with limpet.open_async() as store, AsyncOpenAI() as client:
        chat = AsyncChat(
            client,
            store.conversation(user),
            model="gpt-5-mini",
            instructions=INSTRUCTIONS,
            max_tokens=8_000,  # what is sent; all of it is kept
            reserve=1_000,
        )
        await show(chat.stream())
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line.strip():
                await show(chat.stream(line.strip()))


async def show(pieces: AsyncReplyStream) -> None:
    """Print a reply piece by piece, if there is one."""
    async for piece in pieces:
        print(piece, end="", flush=True)
    if pieces.reply is not None:
        print(flush=True)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python chat_async.py NAME (of whom it talks to, such as alice)")
    asyncio.run(main(sys.argv[1]))
