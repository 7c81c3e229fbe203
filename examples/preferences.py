"""What the user wants is there for every task; of what has changed, the newest comes first.

    $ python preferences.py
    What the user wants, as recorded:
    - "Ada prefers short answers" (source unknown, said by "Ada", 2023-05-02, 1297 days old)
    the newest first: The release is on Friday; The release is on Monday
    last week: Yesterday Ada met Grace

`limpet --store agents.db memory show acme/support` shows what is remembered.
"""

from datetime import UTC, datetime

import limpet

#: What Ada said, and when: a conversation of long ago, remembered now.
SAID = [
    ("The release is on Monday", "fact", datetime(2023, 4, 3, tzinfo=UTC)),
    ("Ada prefers short answers", "preference", datetime(2023, 5, 2, tzinfo=UTC)),
    ("Yesterday Ada met Grace", "fact", datetime(2023, 5, 3, tzinfo=UTC)),
    ("The release is on Friday", "fact", datetime(2023, 5, 9, tzinfo=UTC)),
]

with limpet.open("agents.db") as store:
    memory = store.memory("acme/support")
    memory.remember_all(
        {"text": text, "kind": kind, "said_at": at, "by": "Ada"} for text, kind, at in SAID
    )

    # It shares no word with the goal.
    with store.task("manual", goal="Translate the manual") as task:
        data = task.resume_messages(memories="acme/support")[1]["content"]
        wanted = data[data.index("What the user wants") :].splitlines()
        print(wanted[0], wanted[2], sep="\n")
        task.finish("translated")

    hits = memory.recall("when is the release?")
    print("the newest first:", "; ".join(hit.text for hit in hits if "release" in hit.text))

    asked = datetime(2023, 5, 10, tzinfo=UTC)
    print("last week:", memory.recall("who did Ada meet last week?", k=1, now=asked)[0].text)
