"""The OpenAI Agents SDK: sessions that live in a store, and runs that wait there for a person."""

from limpet.errors import CallsInDoubt
from limpet.integrations.openai_agents.record import (
    ArgumentsRedacted,
    Ask,
    RunFinished,
    RunHeld,
    RunInfo,
    RunNotFound,
)
from limpet.integrations.openai_agents.runs import AsyncRun, AsyncRuns, Runs
from limpet.integrations.openai_agents.session import LimpetSession

__all__ = [
    "ArgumentsRedacted",
    "Ask",
    "AsyncRun",
    "AsyncRuns",
    "CallsInDoubt",
    "LimpetSession",
    "RunFinished",
    "RunHeld",
    "RunInfo",
    "RunNotFound",
    "Runs",
]
