"""Worker threads: results, errors, dropped calls, and an end within bounded time."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from promptdsi.serving import worker
from promptdsi.serving.worker import Worker


def test_calls_run_in_one_named_thread_until_close() -> None:
    async def use() -> list[str]:
        thread = Worker("test")
        names = [await thread.run(lambda: threading.current_thread().name) for _ in range(2)]
        with pytest.raises(ZeroDivisionError):
            await thread.run(lambda: 1 // 0)
        await thread.close()
        return names

    assert asyncio.run(use()) == ["promptdsi-test"] * 2
    assert "promptdsi-test" not in {thread.name for thread in threading.enumerate()}


def test_a_call_whose_caller_is_cancelled_is_dropped() -> None:
    calls: list[str] = []

    async def use() -> None:
        thread, release = Worker("test"), threading.Event()
        first = asyncio.create_task(thread.run(release.wait, 60))
        second = asyncio.create_task(thread.run(calls.append, "second"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        release.set()
        await first
        await thread.close()

    asyncio.run(use())
    assert calls == []


def test_close_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(worker, "SECONDS_TO_CLOSE", 0.1)
    release = threading.Event()

    async def use() -> float:
        thread = Worker("busy")
        call = asyncio.create_task(thread.run(release.wait, 60))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await thread.close()
        release.set()
        await call
        return time.monotonic() - began

    assert asyncio.run(use()) < 3.1  # a tenth of a second, and slack for a busy machine
    assert "promptdsi-busy is still busy" in caplog.text
