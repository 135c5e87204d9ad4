# SPDX-License-Identifier: Apache-2.0
"""What the environment says, and what of an engine's configuration cannot be served. Imports nothing of
vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Refused(ValueError):
    """The plug-in does not serve this configuration: it says what, and what to do."""


def _number(environment: Mapping[str, str], name: str, default: float, least: float = 0.0) -> float:
    said = environment.get(name) or str(default)
    try:
        value = float(said)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise Refused(f"banyan: {name}={said}: a number of at least {least:g} is expected")
    return value


def _whole(environment: Mapping[str, str], name: str, default: int, most: int) -> int:
    value = _number(environment, name, default)
    if value != int(value) or value > most:
        raise Refused(f"banyan: {name}={environment[name]}: a whole number from 0 to {most} is expected")
    return int(value)


@dataclass(frozen=True)
class Settings:
    """The environment, read once in each process.

    Attributes:
        endpoint: of the coordinator; None: a local cluster is yet to be started.
        local: workers of that; 0: none.
        files: of the token and of certificates: keywords of banyan.Client.
        retry_s: how long a call is repeated when the cluster does not answer.
        window: tokens that stay in the engine; 0: none.
        ttl_s: idle time after which a session is deleted; 0: never.
        replicas: copies of each part; 0: the cluster's default.
        prefix: of the names of sessions that have none of their own.
    """

    endpoint: str | None
    local: int
    local_memory: str
    files: dict[str, str]
    retry_s: float
    window: int
    ttl_s: float
    replicas: int
    prefix: str

    @staticmethod
    def of(environment: Mapping[str, str]) -> Settings:
        files = {"token_file": "BANYAN_TOKEN_FILE", "tls_ca": "BANYAN_TLS_CA", "tls_cert": "BANYAN_TLS_CERT", "tls_key": "BANYAN_TLS_KEY"}
        prefix = environment.get("BANYAN_SESSION_PREFIX") or "vllm"
        if len(prefix) > 32 or not prefix.isascii() or not prefix.isprintable():
            raise Refused("banyan: BANYAN_SESSION_PREFIX: at most 32 printable ASCII characters are expected")
        return Settings(
            endpoint=environment.get("BANYAN_ENDPOINT") or None,
            local=_whole(environment, "BANYAN_LOCAL", 0, 64),
            local_memory=environment.get("BANYAN_LOCAL_MEMORY") or "2G",
            files={name: environment[variable] for name, variable in files.items() if environment.get(variable)},
            retry_s=_number(environment, "BANYAN_RETRY_SECONDS", 30.0),
            window=_whole(environment, "BANYAN_WINDOW", 0, 1 << 24),
            ttl_s=_number(environment, "BANYAN_TTL", 3600.0),
            replicas=_whole(environment, "BANYAN_REPLICAS", 0, 3),
            prefix=prefix,
        )


_TYPES = ("auto", "float16", "bfloat16", "float32")


def refusals(config: Any) -> list[str]:
    """Why a VllmConfig cannot be served exactly: a sentence a reason; empty: it can. AttributeError: it lacks
    what is looked at."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    found = []

    def refuse(applies: Any, reason: str) -> None:
        if applies:
            found.append(reason)

    refuse(cache.enable_prefix_caching, "prefix caching of vLLM's own is on (--no-enable-prefix-caching): its blocks hold no keys")
    refuse(
        cache.cache_dtype not in _TYPES,
        f"the KV cache is of type {cache.cache_dtype} (--kv-cache-dtype auto): quantised keys are not exact",
    )
    refuse(parallel.pipeline_parallel_size > 1, "pipeline parallelism (--pipeline-parallel-size 1): a session's layers are in one process")
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        refuse(getattr(parallel, name) > 1, f"{name.replace('_', ' ')} {getattr(parallel, name)}: Banyan itself divides the context")
    refuse(parallel.use_ubatching, "micro-batches (--enable-dbo): they have not been tried")
    refuse(config.speculative_config is not None, "speculative decoding: it has not been tried")
    refuse(model.runner_type != "generate", f"the runner '{model.runner_type}': only text generation is served")
    refuse(model.is_encoder_decoder, "an encoder: keys of cross-attention have no positions in a session")
    refuse(
        model.is_hybrid or model.has_inner_state,
        "a model with a state (Mamba, convolutions): sessions hold keys and values only",
    )
    refuse(model.is_mm_prefix_lm, "images whose tokens see each other in both directions")
    refuse(getattr(model.hf_text_config, "attention_chunk_size", None), "attention in chunks (Llama 4): it has not been tried")
    refuse(
        config.scheduler_config.async_scheduling,
        "asynchronous scheduling (--no-async-scheduling): a step's tokens must be there when it begins",
    )
    transfer = config.kv_transfer_config
    refuse(
        transfer is not None and transfer.kv_connector != "BanyanConnector",
        f"the KV connector {getattr(transfer, 'kv_connector', None)}: one connector is served at a time",
    )
    return found


def check(config: Any) -> None:
    """Raises Refused with all reasons."""
    try:
        found = refusals(config)
    except AttributeError as error:  # what would have to be refused cannot be seen
        raise Refused(f"banyan: this vLLM's configuration is another one than the plug-in was written for: {error}") from None
    if found:
        raise Refused("banyan: this configuration is not served. " + ". ".join(reason[0].upper() + reason[1:] for reason in found) + ".")
