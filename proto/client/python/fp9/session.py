"""Sessions: the arena shared with fp9d, and steps through layers."""
import fcntl
import mmap
import os
import time

from . import arrays, ring
from .errors import Disconnected, Error

ALIGN = 64  # of offsets in the arena
TOKENS_MAX = 4096


def _round_up(count):
    return -(-count // ALIGN) * ALIGN


def _dtype(name):
    return "F32" if name == "f32" else "BF16"


class Places:
    """Where a step's tensors stand in the arena, for up to `tokens` tokens and `top_k` experts a token; `end` is the offset after them.

    x             [tokens][hidden_size] BF16 as its bits: uint16
    topk_ids      [tokens][top_k] int32; -1: an empty slot
    topk_weights  [tokens][top_k] float32
    y             [tokens][hidden_size] in the session's output_dtype: uint16 (BF16 bits) or float32

    Each is the arena's memory itself, a numpy array where numpy is installed and a memoryview otherwise: what is written there is what fp9d
    reads. One step at a time may use them; until its answer the inputs belong to fp9d.
    """

    def __init__(self, session, tokens, top_k, offset):
        self.tokens, self.top_k = tokens, top_k
        value = 4 if session.output_dtype == "F32" else 2
        self._at, sizes = {}, {"x": tokens * session.hidden_size * 2, "topk_ids": tokens * top_k * 4, "topk_weights": tokens * top_k * 4,
                               "y": tokens * session.hidden_size * value}
        self.end = offset
        for name, size in sizes.items():
            self._at[name] = self.end
            self.end += _round_up(size)
        if offset % ALIGN or offset < 0:
            raise Error("BAD_SHAPE", f"offset {offset} of the arena; multiples of {ALIGN} are right")
        if self.end > session.arena_bytes:
            raise Error("BAD_SHAPE", f"places for {tokens} tokens from offset {offset} end at {self.end}, past the arena of "
                        f"{session.arena_bytes} bytes", {"arena_bytes": session.arena_bytes})
        self.step = None  # the one under way here

        def part(name, dtype, *shape):
            return arrays.view(session.arena[self._at[name]:], dtype, shape)

        self.x = part("x", "BF16", tokens, session.hidden_size)
        self.topk_ids = part("topk_ids", "I32", tokens, top_k)
        self.topk_weights = part("topk_weights", "F32", tokens, top_k)
        self._output = session.arena[self._at["y"]:], session.output_dtype, session.hidden_size
        self.y = self.output(tokens)

    def output(self, tokens):
        """y of the first `tokens` tokens."""
        memory, dtype, hidden_size = self._output
        return arrays.view(memory, dtype, (tokens, hidden_size))

    def offset(self, name):
        """Bytes from the arena's start to x, topk_ids, topk_weights or y."""
        return self._at[name]


class Session:
    """A session of Connection.session_open(); close() it or use it in `with`.

    id, model, max_tokens  as opened
    hidden_size, top_k_max of the model; top_k_max is 0 when no layer is MoE
    output_dtype           "BF16" or "F32": the type of y
    lanes                  steps that may be under way at once
    arena, arena_bytes     the shared memory, a writable memoryview of bytes
    places                 Places for max_tokens tokens, at the arena's start
    lane_places            a list of Places that do not overlap, one for each lane; the first is places
    ring                   None, or what steps go through in place of JSON (opened with ring=True)
    info                   the answer to session.open

    Memory: the arena is mapped until close() and until nobody holds an array of it any more; such an array stays readable, but after
    close() nobody writes to it. Threads: as its connection.
    """

    def __init__(self, connection, model, max_tokens, **options):
        self.connection, self.model, self.max_tokens = connection, model, max_tokens
        self.output_dtype = _dtype(options.get("output_dtype"))
        self.id = None
        self.ring = None
        number = connection.request("session.open", model=model, max_tokens=max_tokens, **options)
        self.info, fd = connection.wait_fd(number)
        doorbell = connection.core.doorbell(number)
        try:
            self._map(fd)
            self.lane_places = [self.lay(max_tokens)]
            self.places = self.lane_places[0]
            self.lane_places += [self.lay(max_tokens, offset=lane * self.places.end) for lane in range(1, self.lanes)]
            if options.get("ring"):
                self._open_ring(doorbell)
                doorbell = None
        except BaseException:
            if self.id is not None:
                connection.core.forget(connection.request("session.close", session=self.id))
            raise
        finally:
            for one in (fd, doorbell):
                if one is not None:
                    os.close(one)

    def _map(self, fd):
        counts = {}
        for key, low, high in (("session", 1, 1 << 62), ("hidden_size", 1, 1 << 20), ("top_k_max", 0, 4096), ("arena_bytes", 1, 1 << 40)):
            value = self.info.get(key) if isinstance(self.info, dict) else None
            if type(value) is not int or not low <= value <= high:
                raise Disconnected("INTERNAL", f"fp9d's answer: {key} is no whole number from {low} to {high}")
            counts[key] = value
        self.id, self.hidden_size = counts["session"], counts["hidden_size"]
        self.top_k_max, self.arena_bytes = counts["top_k_max"], counts["arena_bytes"]
        self.lanes = self.info.get("lanes", 1)
        whole = self.arena_bytes
        if isinstance(self.info.get("ring"), dict):
            whole = self.info["ring"]["offset"] + self.info["ring"]["bytes"]
        if fd is None:
            raise Disconnected("INTERNAL", "fp9d's answer came without the arena's descriptor (or this process has none left)")
        # Pages past the file's end would raise SIGBUS, now or when it shrinks.
        size = os.fstat(fd).st_size
        if size < whole:
            raise Disconnected("INTERNAL", f"the arena has {size} bytes, fp9d announced {whole}")
        try:
            self.seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError:
            self.seals = 0
        if not self.seals & fcntl.F_SEAL_SHRINK:
            raise Disconnected("INTERNAL", "the arena is not sealed against shrinking")
        self._memory = mmap.mmap(fd, whole, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.arena = memoryview(self._memory)[:self.arena_bytes]

    def _open_ring(self, doorbell):
        told = self.info.get("ring") or {}
        if told.get("version") != ring.VERSION or told.get("slots") != ring.SLOTS or told.get("bytes", 0) < ring.BYTES or doorbell is None:
            raise Disconnected("INTERNAL", f"fp9d's answer: a ring that this module does not know: {told}")
        self.ring = ring.Ring(self.connection.core, memoryview(self._memory)[told["offset"]:told["offset"] + ring.BYTES], doorbell)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Tells fp9d, which stops steps under way, and lets the memory go. A second close() does nothing."""
        if self.id is None:
            return
        number, self.id = self.id, None
        if self.ring is not None:
            self.ring.close()
        self.ring = self.lane_places = None
        self.places = self.arena = self._memory = None  # unmapped when the last array of it goes
        try:
            self.connection.call("session.close", session=number)
        except Disconnected:
            pass  # the session went with the connection

    def lay(self, tokens, top_k=None, offset=0):
        """Places for steps of up to `tokens` tokens and exactly `top_k` experts a token (None: top_k_max) from `offset` (a multiple of 64)
        of the arena. Several that do not overlap let several steps of small size be under way, as far as fp9d takes them."""
        return Places(self, tokens, self.top_k_max if top_k is None else top_k, offset)

    def decode(self, layer, x=None, topk_ids=None, topk_weights=None, **more):
        """Few tokens through one layer: start() and wait(). Gives the Step; its y is the output."""
        return self._run("decode", layer, x, topk_ids, topk_weights, more)

    def prefill(self, layer, x=None, topk_ids=None, topk_weights=None, **more):
        """Many tokens through one layer; the same bits as decode()."""
        return self._run("prefill", layer, x, topk_ids, topk_weights, more)

    def start(self, kind, layer, x=None, topk_ids=None, topk_weights=None, tokens=None, top_k=None, places=None, deadline_ms=None,
              trace=None):
        """Begins a step of kind "decode" or "prefill" without waiting; gives the Step.

        x             [tokens][hidden_size], BF16 bit patterns (to_bf16() makes them): any contiguous buffer of 2-byte elements, or bytes
        topk_ids      [tokens][top_k] int32, topk_weights [tokens][top_k] float32; both left out for a dense layer
        An input given is copied into `places` (the session's own when left out). With x left out, the inputs stand there already: give
        tokens=, and for a MoE layer top_k=, whose columns then stand packed at the beginning of places.topk_ids and places.topk_weights.
        deadline_ms   fail with DEADLINE when it takes longer
        trace         True: the answer also tells when what happened, timing["trace"]

        As many steps as the session has lanes may be under way, more are refused with BUSY. Without `places` an x that is given goes into
        the first of session.lane_places that no step uses, or at least none that was not answered.
        """
        if self.id is None:
            raise Error("BAD_REQUEST", "the session was closed")
        if places is None and x is not None:
            places = next((one for one in self.lane_places if one.step is None or one.step.taken), None)
            places = places or next((one for one in self.lane_places if not one.step.waiting()), None)
        places = places or self.places
        if places.step is not None and places.step.waiting():
            raise Error("BUSY", "these places are in use by a step whose answer has not come yet")
        tokens, top_k = self._put(places, x, topk_ids, topk_weights, tokens, top_k)
        params = {"session": self.id, "layer": layer, **self.params(tokens, top_k, places)}
        if deadline_ms is not None:
            params["deadline_ms"] = deadline_ms
        if trace is not None:
            params["trace"] = trace
        places.step = Step(self, kind, params, places)
        return places.step

    def params(self, tokens, top_k, places=None):
        """The members tokens, x, topk_ids, topk_weights, top_k and y of a step's params whose tensors stand in `places`."""
        places = places or self.places
        routing = {"top_k": top_k, "topk_ids": {"offset": places.offset("topk_ids")},
                   "topk_weights": {"offset": places.offset("topk_weights")}} if top_k else {}
        return {"tokens": tokens, "x": {"offset": places.offset("x"), "dtype": "BF16"}, **routing,
                "y": {"offset": places.offset("y"), "dtype": self.output_dtype}}

    def put(self, x, topk_ids=None, topk_weights=None, places=None):
        """Copies the inputs of a step into `places` and gives params(): for calls made by hand."""
        places = places or self.places
        tokens, top_k = self._put(places, x, topk_ids, topk_weights, None, None)
        return {"session": self.id, **self.params(tokens, top_k, places)}

    def _run(self, kind, layer, x, topk_ids, topk_weights, more):
        timeout = more.pop("timeout", None)
        return self.start(kind, layer, x, topk_ids, topk_weights, **more).wait(timeout)

    def _put(self, places, x, ids, weights, tokens, top_k):
        row = self.hidden_size * 2
        given = {} if x is None else {"x": arrays.raw(x, "BF16", "x")}
        if x is not None:
            found, rest = divmod(given["x"].nbytes, row)
            if rest or (tokens is not None and tokens != found):
                raise Error("BAD_SHAPE", f"x has {given['x'].nbytes} bytes; a token has {row}" +
                            ("" if tokens is None else f", {tokens} tokens {tokens * row}"), {"tensor": "x"})
            tokens = found
        if tokens is None:
            raise Error("BAD_REQUEST", "x is missing, and tokens does not say how many stand in their place")
        if not 0 <= tokens <= places.tokens:
            raise Error("BAD_SHAPE", f"tokens: {tokens} is out of range; there is room for {places.tokens}", {"tokens": tokens})
        if (ids is None) != (weights is None):
            raise Error("BAD_REQUEST", "topk_ids and topk_weights go together; one of them is missing")
        if ids is not None:
            given["topk_ids"], given["topk_weights"] = arrays.raw(ids, "I32", "topk_ids"), arrays.raw(weights, "F32", "topk_weights")
            top_k = top_k or arrays.columns(ids) or (given["topk_ids"].nbytes // (4 * tokens) if tokens else places.top_k)
            for name in ("topk_ids", "topk_weights"):
                if given[name].nbytes != tokens * top_k * 4:
                    raise Error("BAD_SHAPE", f"{name} has {given[name].nbytes} bytes; {tokens} tokens with {top_k} experts have "
                                f"{tokens * top_k * 4}", {"tensor": name})
        top_k = top_k or 0
        if not 0 <= top_k <= places.top_k:
            raise Error("BAD_SHAPE", f"top_k: {top_k} is out of range; 0 to {places.top_k} are right", {"top_k": top_k})
        for name, memory in given.items():
            at = places.offset(name)
            self.arena[at:at + memory.nbytes] = memory
        return tokens, top_k


class Step:
    """A step of Session.start(): wait() for it.

    y       the output in the arena, [tokens][hidden_size]; it is there after wait() and lasts until the places are used again
    timing  after wait(): job_time_us (this call as the caller sees it), judge_wait_us, duck_max_us, judge_gap_us, judge_ratio (None when
            it is not defined), params (weights applied), weight_bytes, for prefill tiles and avg_tile_batch, of several ranks straggler
            (the duck that answered last, its id) and straggler_us (for how long it was waited for alone), for a one-shot step
            one_shot_us (spawn, map, team, run, exit of the slowest kernel process)
    """

    def __init__(self, session, kind, params, places):
        self._connection, self._session = session.connection, session
        self.timing, self.taken, self._begin = None, False, time.monotonic_ns()
        self.y = places.output(params["tokens"])
        self.number = session.ring.submit(kind, params) if session.ring else session.connection.request(kind, **params)

    def waiting(self):
        """True while there is no answer."""
        return self._connection.core.waiting(self.number)

    def cancel(self):
        """The step is not wanted any more: it ends soon, and wait() raises CANCELLED, unless it was through before. Does not wait; does
        nothing when the answer is there."""
        if not self.waiting() or self._session.id is None:
            return
        if self._session.ring:
            self._session.ring.cancel(self.number)
        else:
            connection = self._connection
            connection.core.forget(connection.request("step.cancel", session=self._session.id, request=self.number))

    def wait(self, timeout=None):
        """Waits for the answer, raises its error, gives the step itself. After a TimeoutError it may be called again."""
        if self.timing is None:
            try:
                told = self._connection.wait(self.number, timeout)
            finally:
                self.taken = not self.waiting()
            self.timing = {"job_time_us": (time.monotonic_ns() - self._begin) / 1000, **told}
        return self
