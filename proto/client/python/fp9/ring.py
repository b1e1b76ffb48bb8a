"""The step ring: steps handed to fp9d through shared memory. Its layout is proto/control/ring.h's, version 1.

Python has no memory fences. What it needs of them comes with the system call that rings the doorbell, so that is rung for every step, and
answers are told over the connection whether they were seen before or not. Stores are seen in their order on x86 only; elsewhere the ring is
refused and steps travel as JSON.
"""
import json
import os
import platform
import struct

from .errors import Error

VERSION, SLOTS, BYTES = 1, 8, 20864  # BYTES: of the whole
SUBMITTED, QUEUE, CANCELS, CANCEL, WAITS, COMPLETED, ENDED, END_TEXT, SLOTS_AT = 64, 68, 76, 80, 128, 256, 260, 320, 2432
SLOT_BYTES, DONE, ANSWER, TEXT = 2304, 64, 72, 192
CALL = struct.Struct("<BBHIIIIIQQQQQ")
ANSWERED = struct.Struct("<IIIIQQQQQQQQQQQQ")
NAME, MESSAGE, VALUES = 64, 1024, 1024
WAITS_NOTIFIED = 2
KINDS = {"decode": 0, "prefill": 1}
DTYPES = {"BF16": 1, "F32": 2}
MODE_NONE = 255


def _text(memory):
    return bytes(memory).split(b"\0", 1)[0].decode(errors="replace")


class Ring:
    """Of one session; belongs to its connection's thread. Takes the doorbell."""

    def __init__(self, core, memory, doorbell):
        if platform.machine() not in ("x86_64", "AMD64"):
            raise Error("BAD_REQUEST", f"the step ring from Python is for x86-64; this is {platform.machine()}")
        self._core, self._memory, self._doorbell = core, memory, doorbell
        self._words = memory[:len(memory) // 4 * 4].cast("I")
        self._submitted, self._cancels, self._done = 0, 0, [0] * SLOTS
        self._calls = [None] * SLOTS  # call's number, kind
        self._words[WAITS // 4] = WAITS_NOTIFIED
        core.rings.append(self)

    def close(self):
        """Steps under way are forgotten."""
        self._core.rings.remove(self)
        for call in self._calls:
            if call is not None:
                self._core.drop(call[0])
        os.close(self._doorbell)
        self._words = self._memory = None

    def submit(self, kind, params):
        """params as of a JSON call whose tensors are all in the arena; gives the call's number."""
        slot = next((slot for slot, call in enumerate(self._calls) if call is None), None)
        if slot is None:
            raise Error("BUSY", f"{SLOTS} steps of the session are under way already")
        number = self._core.local()
        self._calls[slot] = number, kind
        routed = "topk_ids" in params
        try:
            CALL.pack_into(self._memory, SLOTS_AT + slot * SLOT_BYTES, KINDS[kind], DTYPES[params["y"]["dtype"]], 0, params["layer"],
                           params["tokens"], params["top_k"] if routed else 0, params.get("deadline_ms") or 0, 0, params["x"]["offset"],
                           params["topk_ids"]["offset"] if routed else 0, params["topk_weights"]["offset"] if routed else 0,
                           params["y"]["offset"], 0)
        except struct.error as error:
            self._calls[slot] = None
            self._core.drop(number)
            raise Error("BAD_REQUEST", f"{kind}: a number is out of range: {error}") from error
        self._memory[QUEUE + self._submitted % SLOTS] = slot
        self._submitted = (self._submitted + 1) & 0xFFFFFFFF
        self._words[SUBMITTED // 4] = self._submitted
        os.eventfd_write(self._doorbell, 1)
        return number

    def cancel(self, number):
        """The step of the call is not wanted any more."""
        for slot, call in enumerate(self._calls):
            if call is not None and call[0] == number:
                self._words[CANCEL // 4 + slot] = (self._done[slot] + 1) & 0xFFFFFFFF
                self._cancels = (self._cancels + 1) & 0xFFFFFFFF
                self._words[CANCELS // 4] = self._cancels
                os.eventfd_write(self._doorbell, 1)

    def collect(self):
        """Takes the answers that are there."""
        for slot, call in enumerate(self._calls):
            if call is None:
                continue
            if self._words[(SLOTS_AT + slot * SLOT_BYTES + DONE) // 4] != self._done[slot]:
                self._done[slot] = (self._done[slot] + 1) & 0xFFFFFFFF
                self._calls[slot] = None
                self._core.complete(call[0], *self._answer(slot, call[1]))
            elif self._words[ENDED // 4]:
                self._calls[slot] = None
                self._core.complete(call[0], None, self._error(END_TEXT))

    def _error(self, at):
        name, message = _text(self._memory[at:at + NAME]), _text(self._memory[at + NAME:at + NAME + MESSAGE])
        values = _text(self._memory[at + NAME + MESSAGE:at + NAME + MESSAGE + VALUES])
        try:
            data = json.loads("{" + values + "}")
        except ValueError:
            data = {}  # the sentence has the values too
        return {"message": message, "data": {**data, "name": name}}

    def _answer(self, slot, kind):
        at = SLOTS_AT + slot * SLOT_BYTES
        failed, mode, one_shot, last, wait, most, params, weight_bytes, tiles, tile_tokens, *parts = ANSWERED.unpack_from(self._memory,
                                                                                                                   at + ANSWER)
        if failed:
            return None, self._error(at + TEXT)
        told = {"judge_wait_us": wait / 1e3, "duck_max_us": most / 1e3, "judge_gap_us": (wait - most) / 1e3,
                "judge_ratio": wait / most if most else None, "params": params, "weight_bytes": weight_bytes}
        if mode != MODE_NONE:
            told["mode"] = mode
        if one_shot:
            told["one_shot_us"] = {name: value / 1e3 for name, value in zip(("spawn", "map", "team", "run", "exit"), parts)}
        if last:
            told.update(straggler=last - 1, straggler_us=parts[5] / 1e3)
        if kind == "prefill":
            told.update(tiles=tiles, avg_tile_batch=tile_tokens / tiles if tiles else 0.0)
        return told, None
