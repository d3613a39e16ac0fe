"""Dynamic batching: requests that come one by one are answered in batches, without waiting long for each other.

    batcher = Batcher(answer_batch, max_batch=16, batching_timeout_ms=5, instances=1, max_waiting=128)
    async with batcher:
        result = await batcher.answer(encoded)      # Overloaded, where too many wait already

`answer_batch(list of requests)` gives a list of as many results, and runs in a thread of its own for each instance. A batch is begun
as soon as it is full, or its first request has waited for batching_timeout_ms, and an instance is free.
"""

import asyncio
import concurrent.futures


class Overloaded(Exception):
    """More requests wait than will be answered soon: say 503, and when to come again."""


class Batcher:
    def __init__(self, answer_batch, *, max_batch=16, batching_timeout_ms=5.0, instances=1, max_waiting=128):
        if min(max_batch, instances, max_waiting) < 1 or batching_timeout_ms < 0:
            raise ValueError("max_batch, instances and max_waiting are 1 or more, batching_timeout_ms is 0 or more")
        self._answer_batch = answer_batch
        self._max_batch, self._timeout_s = max_batch, batching_timeout_ms / 1000
        self._instances, self._max_waiting = instances, max_waiting
        self.batches = self.requests = 0

    async def __aenter__(self):
        self._waiting = asyncio.Queue(self._max_waiting)
        self._threads = concurrent.futures.ThreadPoolExecutor(self._instances, thread_name_prefix="instance")
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._instances)]
        return self

    async def __aexit__(self, *problem):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._waiting.empty():
            self._waiting.get_nowait()[1].cancel()
        self._threads.shutdown()

    async def answer(self, request):
        future = asyncio.get_running_loop().create_future()
        try:
            self._waiting.put_nowait((request, future, asyncio.get_running_loop().time()))
        except asyncio.QueueFull:
            raise Overloaded from None
        return await future

    async def _collect(self, batch):
        batch.append(await self._waiting.get())
        until = batch[0][2] + self._timeout_s
        while len(batch) < self._max_batch:
            left = until - asyncio.get_running_loop().time()
            try:
                batch.append(self._waiting.get_nowait() if left <= 0 else await asyncio.wait_for(self._waiting.get(), left))
            except (asyncio.QueueEmpty, asyncio.TimeoutError):
                break

    async def _run(self):
        while True:
            batch = []  # of (request, future, when it came)
            try:
                await self._collect(batch)
                self.batches, self.requests = self.batches + 1, self.requests + len(batch)
                results = await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._answer_batch, [request for request, _, _ in batch])
                if len(results) != len(batch):
                    raise RuntimeError(f"{len(results)} results for {len(batch)} requests")
            except asyncio.CancelledError:
                for _, future, _ in batch:
                    future.cancel()
                raise
            except Exception as problem:  # of the model: those who wait hear of it, and the server goes on
                for _, future, _ in batch:
                    if not future.done():
                        future.set_exception(problem)
                continue
            for (_, future, _), result in zip(batch, results):
                if not future.done():
                    future.set_result(result)
