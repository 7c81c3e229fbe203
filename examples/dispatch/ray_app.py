"""Many documents, each summarised by a task of its own, on the processors that Ray has.

    python ray_app.py

Interrupt it whenever you like, and start it again: what is summarised stays so.
"""

from __future__ import annotations

import os
from pathlib import Path

import ray

import limpet
from limpet.workers.ray import Tasks

#: Workers have another environment, and another directory: they are told where the store is.
URL = os.environ.get("LIMPET_URL", f"sqlite:{Path('limpet.db').absolute()}")

DOCUMENTS = {
    "minutes": "We met on Monday. We agreed on little. We shall meet again.",
    "letter": "Thank you for the cake. It was too large. We ate it all.",
    "report": "Sales are up. Costs are up more. We need a plan.",
}

registry = limpet.Registry()


@registry.task("summary")
def summarise(task: limpet.Task) -> str:
    """Cut it up, look at each sentence, keep the shortest."""
    sentences: list[str] = task.step("cut", cut, task.input)
    # A model would be asked about each; a sentence that it has answered for is not asked again.
    scores = [task.step("score", len, sentence) for sentence in sentences]
    best = sentences[scores.index(min(scores))]
    task.decide(best, because="it is the shortest")
    return best


def cut(text: str) -> list[str]:
    """Its sentences."""
    return [sentence.strip() + "." for sentence in text.split(".") if sentence.strip()]


def main() -> None:
    """Submit what is not there, run what is not done, and show it all."""
    with limpet.open(URL) as store:
        for name, text in DOCUMENTS.items():
            store.submit("summary", name, f"Summarise the {name}", input=text)
        ray.init(log_to_driver=False)
        statuses = Tasks(registry, URL, max_retries=5).run_many(DOCUMENTS)
        for name, status in statuses.items():
            print(f"{name}: {status}: {store.task(name).checkpoint().outcome}")


if __name__ == "__main__":
    main()
