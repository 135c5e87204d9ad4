# SPDX-License-Identifier: Apache-2.0
"""A walk over all causal families of the installed Transformers (zoo.py), and the tables of docs/MODELS.md.

    python tests/walk.py                 all families; writes the tables into docs/MODELS.md
    python tests/walk.py --check         all families; says where the tables would be others, but for numbers
    python tests/walk.py FAMILY...       these, on standard output

Each family's logits over the service are held against one forward of eager attention without any cache, over
the same text: in one block, in two, token by token, resumed by another process, and with padding on the left.
Where a model computes other logits for a text when more of it follows, each forward is held against one over
the text up to its own end. Ends with code 1 where something is wrong, neither exact nor refused, or has
changed.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
import zoo

import banyan.transformers
from banyan.transformers import BanyanCache, Refused
from banyan.transformers.faces import stateful

MOST = 5e-5  # of the largest logit: what float32 rounds, in another order, in models that gate or normalise states
TOKENS, SPLIT, PADS = 64, 33, (0, 13)
STATE = 30  # behind which a session keeps the states of layers that are no attention
BLOCKS, STEPS = [SPLIT, TOKENS], list(range(1, TOKENS + 1))
WAYS = ("in one block", "in blocks", "token by token", "resumed", "left padding")
PATIENCE_S = 300  # for a family
WIDTH = 100  # of the page's lines

PAGE = Path(__file__).resolve().parents[3] / "docs" / "MODELS.md"
BEGIN, END = "<!-- written by client/python/tests/walk.py -->\n", "<!-- end of what walk.py writes -->\n"


def text(seed: int = 3) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randint(3, 120, (2, TOKENS))


class Found(NamedTuple):
    """What was found of a family.

    Attributes:
        family: its name.
        reason: why no model was made, or why it is refused however it is used; "" else.
        made: whether there is a model.
        holds: what the service holds of it.
        ways: of each way the largest difference of a logit over the largest logit; or the reason why it is
        refused; or
            the error that it ends with.
        eager: the larger difference of eager attention with Transformers' own cache, in blocks and token by
        token. None: it
            has no such cache, or fails.
    """

    family: str
    reason: str = ""
    made: bool = True
    holds: str = ""
    ways: dict[str, float | str | Exception] = {}  # noqa: RUF012
    eager: float | None = None

    @property
    def wrong(self) -> list[str]:
        return [way for way, found in self.ways.items() if not isinstance(found, str) and not (isinstance(found, float) and found <= MOST)]


def _distance(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


def _feed(model: Any, cache: Any, ids: torch.Tensor, ends: list[int], begin: int = 0, **all_of: Any) -> torch.Tensor:
    """Logits of forwards that end there; all_of: what belongs to all tokens."""
    out, at = [], begin
    with torch.no_grad():
        for end in ends:
            more = {name: x[:, at:end] if name == "position_ids" else x[:, :end] for name, x in all_of.items()}
            out.append(model(ids[:, at:end], past_key_values=cache, use_cache=True, **more).logits)
            at = end
    return torch.cat(out, dim=1)


def _reference(model: Any, ids: torch.Tensor, ends: list[int], **all_of: Any) -> torch.Tensor:
    """Logits of forwards that end there, each from one forward over the text up to there, without a cache."""
    want = zoo.whole(model, ids, **all_of)
    begun = {name: x[:, :SPLIT] for name, x in all_of.items()}
    if _distance(zoo.whole(model, ids[:, :SPLIT], **begun), want[:, :SPLIT]) <= MOST:
        return want  # what follows a text changes nothing of it
    at, out = 0, []
    for end in ends:
        out.append(zoo.whole(model, ids[:, :end], **{name: x[:, :end] for name, x in all_of.items()})[:, at:])
        at = end
    return torch.cat(out, dim=1)


def _padded(model: Any) -> dict[str, torch.Tensor]:
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    for i, pad in enumerate(PADS):
        mask[i, :pad] = 0
    more = {"attention_mask": mask}
    if zoo.takes(model, "position_ids"):  # as generate() gives them
        more["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return more


def _traits(cache: BanyanCache) -> str:
    spec = cache.sessions[0].spec
    kinds = [k for k in dict.fromkeys(spec.table[:-1]) if k is not None]  # the last layer holds the tokens
    traits = [
        ("windows", any(k.window for k in kinds)),
        ("chunked masks", any(k.mask_chunk for k in kinds)),
        ("soft caps", any(k.soft_cap for k in kinds)),
        ("latents (MLA)", any(k.v_in_k for k in kinds)),
        ("sinks", any(len(s) for s in spec.layer_sinks)),
        ("shared keys", any(s is not None for s in spec.shares)),
        ("states", any(map(stateful, cache.layers))),
        ("different heads", len({(k.kv_heads, k.k_dim, k.v_dim) for k in kinds}) > 1),
    ]
    return ", ".join(name for name, has in traits if has) or "plain layers"


class Walk:
    """Families, one after the other, over a cluster and with another process that resumes."""

    def __init__(self, client: Any, endpoint: str) -> None:
        self._client, self._endpoint = client, endpoint
        self._other: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        if self._other is not None:
            self._other.stdin.close()  # type: ignore[union-attr]
            self._other.wait()

    def _resume(self, family: str, session: str) -> torch.Tensor:
        """Logits of the tokens from SPLIT on, by another process."""
        if self._other is None:
            self._other = subprocess.Popen(
                [sys.executable, __file__, "--other", self._endpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        pickle.dump((family, session), self._other.stdin)  # type: ignore[arg-type]
        self._other.stdin.flush()  # type: ignore[union-attr]
        said = pickle.load(self._other.stdout)  # type: ignore[arg-type]
        if isinstance(said, torch.Tensor):
            return said
        is_refusal, reason = said
        raise Refused(reason) if is_refusal else RuntimeError(reason)

    def family(self, family: str) -> Found:
        ids = text()
        try:
            with _patience():
                model = zoo.make(family, ids)
                if zoo.whole(model, ids).equal(zoo.whole(model, ids)) is False:
                    raise zoo.NotMade("two forwards over one text differ")
        except Exception as error:
            return Found(family, zoo.why(error), made=False)
        try:
            with _patience():
                return self._compare(family, model, ids)
        except Refused as error:
            return Found(family, str(error))
        except Exception as error:
            return Found(family, ways={WAYS[0]: error})
        finally:
            for info in self._client.sessions():
                with contextlib.suppress(banyan.NotFound):  # states go with the session that they are of
                    self._client.open(info.id).delete()

    def _compare(self, family: str, model: Any, ids: torch.Tensor) -> Found:
        want, in_blocks, in_steps = (_reference(model, ids, ends) for ends in ([TOKENS], BLOCKS, STEPS))
        padding = _padded(model)
        eager = padded = None
        with contextlib.suppress(Exception):
            eager = max(
                _distance(_feed(model, transformers.DynamicCache(config=model.config), ids, ends), rows)
                for ends, rows in ((BLOCKS, in_blocks), (STEPS, in_steps))
            )
        with contextlib.suppress(Exception):
            padded = _reference(model, ids, BLOCKS, **padding)
        model.set_attn_implementation("banyan")
        cache = BanyanCache(model, self._client, chunk_tokens=16, members=2)
        with cache:
            got = _feed(model, cache, ids, [TOKENS])
            holds, ways = _traits(cache), {WAYS[0]: _distance(got, want)}

        def resumed() -> torch.Tensor:
            with BanyanCache(model, self._client, session="walk", batch=2, chunk_tokens=16, state_tokens=STATE) as first:
                _feed(model, first, ids, [STATE, *range(STATE + 1, SPLIT + 1)] if any(map(stateful, first.layers)) else [SPLIT])
            for info in self._client.sessions():  # as if the process had died before it put those behind the text
                if info.name in ("walk/0", "walk/1"):
                    self._client.open(info.id).cut_states(SPLIT - 1)
            return self._resume(family, "walk")

        def fresh(ends: list[int], **more: Any) -> torch.Tensor:
            with BanyanCache(model, self._client, chunk_tokens=16) as own:
                return _feed(model, own, ids, ends, **more)

        for way, run, rows in (
            (WAYS[1], lambda: fresh(BLOCKS), in_blocks),
            (WAYS[2], lambda: fresh(STEPS), in_steps),
            (WAYS[3], resumed, want[:, SPLIT:]),
        ):
            ways[way] = _outcome(lambda run=run, rows=rows: _distance(run(), rows))
        if padded is None:
            ways[WAYS[4]] = "the model does not take it by itself"
        else:
            seen = padding["attention_mask"].bool()
            ways[WAYS[4]] = _outcome(lambda: _distance(fresh(BLOCKS, **padding)[seen], padded[seen]))
        return Found(family, holds=holds, ways=ways, eager=eager)


def _outcome(run: Callable[[], float]) -> float | str | Exception:
    try:
        return run()
    except Refused as error:
        return str(error)
    except Exception as error:
        return error


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"not done after {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def other(endpoint: str) -> None:
    """The other process: goes on where a session ends."""
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    ids = text()
    with banyan.Client(endpoint) as client:
        while True:
            try:
                family, session = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            said: Any
            try:
                model = zoo.make(family, ids)
                model.set_attn_implementation("banyan")
                with BanyanCache(model, client, session=session, batch=2, chunk_tokens=16) as cache:
                    ends = [TOKENS] if cache.blocks_are_exact or not cache.has_local_layers else list(range(SPLIT + 1, TOKENS + 1))
                    said = _feed(model, cache, ids, ends, begin=SPLIT)
                    cache.delete()
            except Exception as error:
                said = isinstance(error, Refused), str(error)
            pickle.dump(said, out)
            out.flush()


# ---- the page ----


def _short(reason: str) -> str:
    """A line of a table, without the numbers of layers and sessions: so the same reason is the same text."""
    text = re.sub(r"\s+", " ", reason.split("\n")[0]).replace("|", "/").replace("<", "&lt;")
    text = re.sub(r"\d{6,}", "ID", re.sub(r"layers \[[^]]*\]", "layers", text))
    return text if len(text) <= 180 else text[:180].rpartition(" ")[0] + " …"


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def tables(all_found: list[Found]) -> str:
    notes: dict[str, int] = {}

    def cell(found: float | str | Exception | None) -> str:
        if found is None:
            return "-"
        if isinstance(found, Exception):
            return f"**error** [{notes.setdefault(_short(zoo.why(found)), len(notes) + 1)}]"
        if not isinstance(found, str):
            return f"{found:.1e}" if found <= MOST else f"**{found:.1e}**"
        return f"refused [{notes.setdefault(_short(found), len(notes) + 1)}]"

    served = [f for f in all_found if f.made and not f.reason]
    refused = [f for f in all_found if f.made and f.reason]
    missing = [f for f in all_found if not f.made]
    lines = [
        *_paragraph(
            f"Transformers {transformers.__version__}, PyTorch {torch.__version__.split('+')[0]}: {len(all_found)} families; {len(served)} "
            f"are served, {len(refused)} are refused, of {len(missing)} no tiny model was made."
        ),
        "",
        "| family | holds | in one block | in blocks = in one forward | token by token | resumed | left padding |",
        "|---|---|---|---|---|---|---|",
    ]
    for f in served:
        lines.append(f"| `{f.family}` | {f.holds} | " + " | ".join(cell(f.ways.get(way)) for way in WAYS) + " |")
    if notes:
        lines += ["", "| | why |", "|---|---|", *(f"| [{n}] | {reason} |" for reason, n in notes.items())]
    wrong, other_way = [f for f in served if f.wrong], [f for f in served if f.eager is not None and not f.eager <= MOST]
    if wrong:
        lines += ["", *_paragraph(f"In bold, **wrong**: {', '.join(f'`{f.family}`' for f in wrong)}.")]
    if other_way:
        names = ", ".join(f"`{f.family}` ({f.eager:.1e})" for f in other_way)
        lines += [
            "",
            *_paragraph(
                f"Transformers' own cache, with eager attention in the same blocks or token by token, differs from one forward for {names}."
            ),
        ]
    for title, rows in (("Refused", refused), ("Not made", missing)):
        lines += ["", f"## {title}", "| family | reason |", "|---|---|", *(f"| `{f.family}` | {_short(f.reason)} |" for f in rows)]
    return "\n".join(lines) + "\n"


def page() -> tuple[str, str, str]:
    """The page before the tables, these, and behind them."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    inside, _, behind = rest.partition(END)
    return before, inside, behind


def outcomes(text: str) -> list[str]:
    """Lines of tables without numbers: what is exact, what is refused, what is wrong."""
    return re.sub(r" \[\d+\]", "", re.sub(r"\d\.\de[-+]\d+", "N", text)).splitlines()


def changes(found: list[Found]) -> list[str]:
    return list(difflib.unified_diff(outcomes(page()[1]), outcomes(tables(found)), "docs/MODELS.md", "found", lineterm="", n=0))


def write(found: list[Found]) -> None:
    before, _, behind = page()
    PAGE.write_text(before + BEGIN + tables(found) + END + behind)


@contextlib.contextmanager
def walking() -> Iterator[Walk]:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    torch.set_num_threads(1)
    with banyan.local_cluster(3, memory="256M", threads=1) as cluster, cluster.connect() as client:
        walk = Walk(client, cluster.endpoint)
        try:
            yield walk
        finally:
            walk.close()


def main(chosen: list[str]) -> int:
    found, check = [], chosen == ["--check"]
    chosen = [] if check else chosen
    with walking() as walk:
        for family in chosen or zoo.families() + zoo.ropes():
            found.append(walk.family(family))
            print(found[-1], file=sys.stderr, flush=True)
    changed = changes(found) if check else []
    if check:
        print(*changed, sep="\n")
    elif chosen:
        print(tables(found))
    else:
        write(found)
    return 1 if changed or any(f.wrong for f in found) else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    if sys.argv[1:2] == ["--other"]:
        torch.set_num_threads(1)
        other(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:]))
