"""A rehearsal, once, in the process that `openai_programs` forks its children from."""

from __future__ import annotations

import itertools
import os

from tests.support.openai_programs import APIS, Job, brain, do
from tests.support.openai_server import Server

with Server(brain=brain) as server:
    for api, face, stream in itertools.product(APIS, ("sync", "async"), (0, 1)):
        do(Job("memory:", server.url, os.devnull, api, face, bool(stream)))
