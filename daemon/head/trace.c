#include "daemon/head/trace.h"

#include <stdlib.h>

#include "proto/base/clock.h"

struct rank {
    uint64_t sent_ns, answered_ns, duck_time_ns; /* 0: not yet */
};

struct chunk {
    uint32_t first, tokens;
    uint64_t begun_ns, encoded_ns, summed_ns;
};

struct trace {
    uint64_t received_ns, parsed_ns;
    uint32_t tp, chunk_count;
    struct chunk chunks[TRACE_CHUNKS_MAX];
    struct rank ranks[]; /* [TRACE_CHUNKS_MAX][tp] */
};

struct trace *trace_new(uint64_t received_ns, uint32_t tp)
{
    struct trace *trace = calloc(1, sizeof *trace + (size_t)TRACE_CHUNKS_MAX * tp * sizeof(struct rank));
    if (!trace)
        return NULL;
    trace->received_ns = received_ns;
    trace->parsed_ns = clock_now_ns();
    trace->tp = tp;
    return trace;
}

void trace_free(struct trace *trace)
{
    free(trace);
}

/* The chunk that is under way; NULL: there is none to be noted. */
static struct chunk *chunk_now(struct trace *trace)
{
    return trace && trace->chunk_count && trace->chunk_count <= TRACE_CHUNKS_MAX ? &trace->chunks[trace->chunk_count - 1] : NULL;
}

static struct rank *rank_now(struct trace *trace, uint32_t rank)
{
    struct chunk *chunk = chunk_now(trace);
    return chunk ? &trace->ranks[(size_t)(chunk - trace->chunks) * trace->tp + rank] : NULL;
}

void trace_chunk(struct trace *trace, const struct core_step *step)
{
    if (!trace)
        return;
    trace->chunk_count++;
    struct chunk *chunk = chunk_now(trace);
    if (chunk)
        *chunk = (struct chunk){
            .first = step->chunk_first,
            .tokens = step->chunk_tokens,
            .begun_ns = step->chunk_started_ns,
            .encoded_ns = clock_now_ns(),
        };
}

void trace_sent(struct trace *trace, uint32_t rank)
{
    struct rank *at = rank_now(trace, rank);
    if (at)
        at->sent_ns = clock_now_ns();
}

void trace_answered(struct trace *trace, uint64_t now, uint32_t rank, uint64_t duck_time_ns)
{
    struct rank *at = rank_now(trace, rank);
    if (!at)
        return;
    at->answered_ns = now;
    at->duck_time_ns = duck_time_ns;
}

void trace_summed(struct trace *trace)
{
    struct chunk *chunk = chunk_now(trace);
    if (chunk)
        chunk->summed_ns = clock_now_ns();
}

static json_t *since(const struct trace *trace, uint64_t at)
{
    return json_integer((json_int_t)(at - trace->received_ns));
}

static json_t *ranks_json(const struct trace *trace, uint32_t chunk, const struct core *core, const struct core_session *session)
{
    json_t *ranks = json_array();
    for (uint32_t i = 0; i < trace->tp; i++) {
        const struct rank *rank = &trace->ranks[(size_t)chunk * trace->tp + i];
        if (!rank->sent_ns)
            continue; /* it was not asked */
        json_array_append_new(ranks,
                              json_pack("{s:I, s:s, s:o, s:o, s:I}", "rank", (json_int_t)i, "duck",
                                        core->ducks[session->duck_of_rank[i]].name, "sent_ns", since(trace, rank->sent_ns), "answered_ns",
                                        since(trace, rank->answered_ns), "duck_time_ns", (json_int_t)rank->duck_time_ns));
    }
    return ranks;
}

json_t *trace_json(const struct trace *trace, const struct core *core, const struct core_session *session)
{
    if (!trace)
        return NULL;
    json_t *chunks = json_array();
    for (uint32_t i = 0; i < trace->chunk_count && i < TRACE_CHUNKS_MAX; i++) {
        const struct chunk *chunk = &trace->chunks[i];
        json_array_append_new(chunks, json_pack("{s:I, s:I, s:o, s:o, s:o, s:o}", "first_token", (json_int_t)chunk->first, "tokens",
                                                (json_int_t)chunk->tokens, "begun_ns", since(trace, chunk->begun_ns), "encoded_ns",
                                                since(trace, chunk->encoded_ns), "ranks", ranks_json(trace, i, core, session), "summed_ns",
                                                since(trace, chunk->summed_ns)));
    }
    uint32_t left_out = trace->chunk_count > TRACE_CHUNKS_MAX ? trace->chunk_count - TRACE_CHUNKS_MAX : 0;
    return json_pack("{s:I, s:o, s:o, s:I, s:o}", "received_ns", (json_int_t)trace->received_ns, "parsed_ns",
                     since(trace, trace->parsed_ns), "chunks", chunks, "chunks_left_out", (json_int_t)left_out, "answered_ns",
                     since(trace, clock_now_ns()));
}
