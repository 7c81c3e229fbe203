"""The OpenAI Agents SDK: sessions that live in a store, and runs that wait there for a person."""

from limpet.integrations.openai_agents.session import (
    Ask,
    AsyncRun,
    AsyncRuns,
    LimpetSession,
    RunFinished,
    RunHeld,
    RunInDoubt,
    RunInfo,
    RunNotFound,
    Runs,
)

__all__ = [
    "Ask",
    "AsyncRun",
    "AsyncRuns",
    "LimpetSession",
    "RunFinished",
    "RunHeld",
    "RunInDoubt",
    "RunInfo",
    "RunNotFound",
    "Runs",
]
