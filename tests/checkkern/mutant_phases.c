/* Faults of the forward in phases, as mutant.c has those of kernels: work that nobody does, and sums in another order. The work that is
 * done is right, so that only comparing bits, and of enough shapes, can find them. */
#include <stdlib.h>
#include <string.h>

#include "kernels/phases_parts.h"

static bool is(const char *fault)
{
    const char *wanted = getenv("FP9_MUTANT");

    return wanted && strcmp(wanted, fault) == 0;
}

/* The last unit of the last member's run is nobody's, when there is more than one member. */
void __real_split_runs(const struct split_work *work, uint32_t count, uint32_t tile, uint32_t members, uint32_t *ret_begins);
void __wrap_split_runs(const struct split_work *work, uint32_t count, uint32_t tile, uint32_t members, uint32_t *ret_begins);
void __wrap_split_runs(const struct split_work *work, uint32_t count, uint32_t tile, uint32_t members, uint32_t *ret_begins)
{
    __real_split_runs(work, count, tile, members, ret_begins);
    if (is("split-drops-unit") && members > 1 && ret_begins[members] > ret_begins[members - 1])
        ret_begins[members]--;
}

/* What is taken within a tile is begun at the tile's first panel. */
struct split_place __real_split_place_of(const struct split_work *work, uint32_t count, uint32_t tile, uint32_t unit);
struct split_place __wrap_split_place_of(const struct split_work *work, uint32_t count, uint32_t tile, uint32_t unit);
struct split_place __wrap_split_place_of(const struct split_work *work, uint32_t count, uint32_t tile, uint32_t unit)
{
    struct split_place place = __real_split_place_of(work, count, tile, unit);

    if (is("split-place"))
        place.panel = 0;
    return place;
}

/* The first two experts the other way round, with their pairs. */
static void swap_experts(struct phases *phases)
{
    struct phases_room *room = &phases->room;
    struct phases_expert a = room->experts[0], b = room->experts[1];
    struct split_work work = room->work[0];
    size_t bytes = (a.count + b.count) * sizeof(*room->pairs);
    struct phases_pair *pairs = malloc(bytes);

    if (!pairs)
        abort();
    memcpy(pairs, room->pairs + a.count, b.count * sizeof(*pairs));
    memcpy(pairs + b.count, room->pairs, a.count * sizeof(*pairs));
    memcpy(room->pairs, pairs, bytes);
    free(pairs);
    b.h = a.h;
    a.h = b.h + (size_t)b.count * b.h_stride;
    a.first = b.count;
    b.first = 0;
    room->experts[0] = b;
    room->experts[1] = a;
    room->work[0] = room->work[1];
    room->work[1] = work;
}

/* A token that has an expert twice gets the second slot's first. */
static void swap_slots(struct phases *phases)
{
    for (uint32_t e = 0; e < phases->expert_count; e++) {
        struct phases_pair *pair = phases->room.pairs + phases->room.experts[e].first;

        for (uint32_t i = 1; i < phases->room.experts[e].count; i++) {
            struct phases_pair first = pair[i - 1];

            if (first.token != pair[i].token)
                continue;
            pair[i - 1] = pair[i];
            pair[i] = first;
        }
    }
}

void __real_phases_sort(struct phases *phases, struct phases_chunk chunk);
void __wrap_phases_sort(struct phases *phases, struct phases_chunk chunk);
void __wrap_phases_sort(struct phases *phases, struct phases_chunk chunk)
{
    __real_phases_sort(phases, chunk);
    if (is("phases-experts-order") && phases->expert_count > 1)
        swap_experts(phases);
    if (is("phases-slots-order"))
        swap_slots(phases);
}
