"""An independent model drafts: a smaller one of the same vocabulary, token after token.

Leviathan et al. (2023), Chen et al. (2023). It keeps keys and values of its own for every sequence.
A round feeds it the last two tokens of the text in one pass, then what it drafted, one by one. Two,
because after a round that was accepted as a whole its cache lacks the last draft, which it made but
was never fed; where that row is there already, it is computed again and written nowhere.

What a sequence has before its first round (its prompt, and all that came while nothing was drafted)
is computed when it is first asked for; of a prompt that began like another one of the same tenant,
only the rest.

Shapes: S sequences, N drafts, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from backend.config import EngineConfig
from backend.errors import SetupError
from backend.models.interface import AttentionGroup, CausalModel, FeatureTap, ForwardInput
from backend.models.loading import load_model, read_description
from backend.speculate.draft_blocks import BlockCopy, DraftBlocks, Lane
from backend.speculate.draft_cache import Places, View
from backend.speculate.picking import Picker
from backend.speculate.protocol import Proposal, ProposeInput

log = logging.getLogger(__name__)

_FED = 2  # tokens of the text in a round's first pass


@dataclass(frozen=True, slots=True)
class _Round:
    """A sequence's last round: how long its text was then, how many drafts were made, and when."""

    num_tokens: int
    num_drafts: int
    step: int

    def num_rows(self, num_tokens: int, step: int) -> int:
        """Rows of the cache that are true now that the text has so many tokens.

        Of the drafts all but the last one were fed; the accepted ones are the text's next tokens.
        """
        num_accepted = num_tokens - self.num_tokens - 1 if step == self.step + 1 else 0
        return self.num_tokens + max(0, min(num_accepted, self.num_drafts - 1))


class DraftModelProposer:
    name = "draft_model"
    taps: tuple[FeatureTap, ...] = ()

    def __init__(self, draft: CausalModel, target: CausalModel, config: EngineConfig) -> None:
        """`draft`: loaded for as many rows a step as the engine's."""
        self.num_drafts_max = config.num_drafts_max
        self._model = draft
        self._vocab_size = target.config.vocab_size
        self._context_len = _context_len(draft.config.context_len_max, target, config)
        self._lens = sorted(each for each in config.shapes.prefill_lens if each <= config.rows_max)
        width = -(-self._context_len // config.block_size)
        num_blocks = _num_blocks(target, config, width)
        self._cache = draft.make_cache(num_blocks, config.block_size)
        self._blocks = DraftBlocks(num_blocks, config.block_size, lookahead=0)
        self._rounds: dict[int, _Round] = {}
        device = torch.device(config.device)
        host = torch.zeros((config.sequences_max + 1, width), dtype=torch.int32)
        self._tables_host = host.pin_memory() if device.type == "cuda" else host
        self._tables = self._tables_host.to(device)  # on a CPU both are one
        self._table_rows = self._tables_host.numpy()
        self._picker = Picker(device)

    @classmethod
    def make(cls, model: CausalModel, config: EngineConfig) -> DraftModelProposer:
        """The model that `draft_path` names. Raises SetupError."""
        if not config.draft_path:
            raise SetupError("the draft method draft_model needs a model; name it (draft_path)")
        described, _ = read_description(config.draft_path)
        length = _context_len(described.context_len_max, model, config)
        loaded = load_model(config.draft_path, replace(config, context_len_max=length))
        log.info("draft model: %.1f MB of weights", loaded.report.weight_bytes / 1e6)
        return cls(loaded.model, model, config)

    def propose(self, given: ProposeInput) -> Proposal | None:
        """After a failure the sequences that run then get no more drafts."""
        try:
            return self._propose(given)
        except Exception:
            self._blocks.lose_all()
            raise

    def release(self, slot: int) -> None:
        self._blocks.end(slot)
        self._rounds.pop(slot, None)

    def _propose(self, given: ProposeInput) -> Proposal | None:
        lanes = [self._enter(given, row) for row in range(len(given.histories))]
        if given.num_drafts == 0 or all(lane.is_lost for lane in lanes):
            return None
        view = self._view(given, max(len(lane.blocks) for lane in lanes))
        tokens, is_new = self._last_tokens(given, lanes)
        for lane, text in zip(lanes, given.histories, strict=True):
            self._blocks.note(lane, text, len(text))
        places = view.places(given.lengths - _FED, _FED)
        logits = self._forward(tokens.flatten(), _written(places, is_new), _FED)
        drafts, probs = [], []
        for number in range(1, given.num_drafts + 1):
            drafted, drawn_from = self._picker.pick(logits, given.temperatures)
            drafts.append(drafted)
            if drawn_from is not None:
                probs.append(drawn_from)
            if number < given.num_drafts:
                logits = self._forward(drafted, view.places(given.lengths - 1 + number, 1), 1)
        for slot, text in zip(given.slot_ids, given.histories, strict=True):
            self._rounds[slot] = _Round(len(text), given.num_drafts, given.step)
        return Proposal(
            torch.stack(drafts, 1),
            torch.where(view.is_lost > 0, 0, given.num_drafts),
            torch.stack(probs, 1) if probs else None,
        )

    def _enter(self, given: ProposeInput, row: int) -> Lane:
        """Blocks for the text and its drafts, and rows for all of it but its last two tokens."""
        slot, text = given.slot_ids[row], given.histories[row]
        lane, last = self._blocks.lane(slot), self._rounds.get(slot)
        if lane is None:
            lane, copy = self._blocks.begin(slot, given.tenants[row], text, len(text) - 1)
            # What no other sequence has is not left out, but computed here.
            lane.gap = 0
            self._copy(copy)
        elif last is not None:
            lane.num_rows = last.num_rows(len(text), given.step)
        num_needed = len(text) + given.num_drafts
        if num_needed > self._context_len or not self._blocks.reach(lane, num_needed):
            self._blocks.lose(lane)
        self._table_rows[slot, : len(lane.blocks)] = lane.blocks
        self._table_rows[slot, len(lane.blocks) :] = 0
        self._catch_up(slot, lane, text)
        return lane

    def _catch_up(self, slot: int, lane: Lane, text: Sequence[int]) -> None:
        """The tokens that the round's first pass will not feed, piece by piece."""
        while not lane.is_lost and lane.num_rows < len(text) - _FED:
            fed = text[lane.num_rows : len(text) - _FED][: self._lens[-1]]
            num_rows = next(each for each in self._lens if each >= len(fed))
            device = self._tables.device
            ids = torch.tensor([*fed, *[0] * (num_rows - len(fed))], device=device)
            first, count = (
                torch.tensor([each], device=device) for each in (lane.num_rows, len(fed))
            )
            table = torch.tensor([lane.blocks], dtype=torch.int32, device=device)
            none = torch.zeros_like(first)
            view = View(table, none, none, self._blocks.block_size, self._context_len)
            self._run(ids, view.places(first, num_rows, count), num_rows)
            self._blocks.note(lane, text, lane.num_rows + len(fed))

    def _view(self, given: ProposeInput, num_blocks: int) -> View:
        if self._tables is not self._tables_host:
            self._tables.copy_(self._tables_host, non_blocking=True)
        # Few different widths, as the engine's own tables have.
        width = min(1 << max(0, num_blocks - 1).bit_length(), self._tables.shape[1])
        tables = self._tables[:, :width].index_select(0, given.slots)
        # A lane without blocks, and a row that only pads, has block 0 first.
        is_lost = (tables[:, 0] == 0).to(torch.int64)
        return View(
            tables, torch.zeros_like(is_lost), is_lost, self._blocks.block_size, self._context_len
        )

    def _last_tokens(self, given: ProposeInput, lanes: Sequence[Lane]) -> tuple[Tensor, Tensor]:
        """int64 [S, 2], and bool [S]: whether the first of the two has no row yet."""
        rows = [
            [*text[-_FED:], lane.num_rows < len(text) - 1]
            for lane, text in zip(lanes, given.histories, strict=True)
        ]
        rows += [[0, 0, 0]] * (given.slots.shape[0] - len(rows))
        is_apart = given.slots.device.type != "cpu"
        packed = torch.tensor(rows, dtype=torch.int64, pin_memory=is_apart)
        packed = packed.to(given.slots.device, non_blocking=True)
        return packed[:, :_FED], packed[:, _FED] > 0

    def _forward(self, token_ids: Tensor, places: Places, query_len: int) -> Tensor:
        """float32 [S, V]: behind the last row of each sequence, over the target's vocabulary."""
        hidden = self._run(token_ids, places, query_len)
        logits = self._model.logits(hidden[query_len - 1 :: query_len])
        missing = self._vocab_size - logits.shape[1]
        if missing > 0:
            return functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[:, : self._vocab_size]

    def _run(self, token_ids: Tensor, places: Places, query_len: int) -> Tensor:
        """[S Q, H]."""
        group = AttentionGroup(
            row_start=0,
            num_sequences=token_ids.shape[0] // query_len,
            query_len=query_len,
            block_tables=places.block_tables,
            context_lens=places.context_lens,
            query_starts=places.query_starts,
        )
        # Ids that only pad the target's larger vocabulary are unknown to the draft.
        ids = token_ids.clamp(max=self._model.config.vocab_size - 1)
        return self._model.forward(
            ForwardInput(ids, places.positions, places.kv_slots, (group,)), self._cache
        )

    def _copy(self, copy: BlockCopy | None) -> None:
        if copy is not None:
            for each in (*self._cache.keys, *self._cache.values):
                each[copy.target].copy_(each[copy.source])


def _written(places: Places, is_new: Tensor) -> Places:
    """The first of two rows is written only where it is new: it may lie in a shared block."""
    first = torch.where(is_new, places.kv_slots[::_FED], 0)
    kv_slots = torch.stack((first, places.kv_slots[1::_FED]), 1).flatten()
    return replace(places, kv_slots=kv_slots)


def _context_len(context_len: int, target: CausalModel, config: EngineConfig) -> int:
    return min(context_len, config.context_len_max or target.config.context_len_max)


def _num_blocks(target: CausalModel, config: EngineConfig, width: int) -> int:
    """For as many tokens as the target's cache holds, and two blocks a sequence more."""
    block_bytes = target.kv_bytes_per_token() * config.block_size
    wanted = config.kv_cache_bytes // block_bytes + 2 * config.sequences_max
    return 1 + min(config.sequences_max * (width + 2), wanted)
