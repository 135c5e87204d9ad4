# SPDX-License-Identifier: Apache-2.0
"""A scheduler that ends a failed request in the very step in which it failed.

vLLM's own looks only at blocks with tokens that were there before the step: it would deliver a token that was
computed from zeros. And it refuses to look where layers have several kinds of blocks.
"""

from __future__ import annotations

from vllm.v1.core.sched.scheduler import Scheduler


class BanyanScheduler(Scheduler):
    """Use it by the name banyan.vllm.BanyanScheduler; engine.py does."""

    def _handle_invalid_blocks(self, invalid_block_ids: set[int], num_scheduled_tokens: dict[str, int]) -> set[str]:
        """Requests that fail: those with one of these blocks, which belong to one request each."""
        blocks = self.kv_cache_manager.get_block_ids
        return {
            request.request_id
            for request in self.running
            if any(not invalid_block_ids.isdisjoint(group) for group in blocks(request.request_id))
        }
