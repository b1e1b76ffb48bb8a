/* The forward in phases against that of each token alone: any number of members in any order, paused at random, poisoned scratch, both
 * dtypes, every tier, by memcmp. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/phases.h"
#include "tests/checkkern/run.h"

struct routing {
    uint32_t tokens, top_k; /* top_k 0: dense */
    int32_t *ids;
    float *weights;
    uint16_t *memory, *x; /* x aligned to nothing */
};

enum skew {
    SKEW_NONE,   /* any expert, empty slots, the same expert more than once */
    SKEW_ONE,    /* all slots of all tokens: the last expert */
    SKEW_STRONG, /* most of them: expert 0 */
    SKEW_EMPTY,  /* no slot has an expert */
    SKEWS,
};

static int32_t random_id(uint32_t experts, enum skew skew, struct check_random *random)
{
    if (experts == 0)
        return -1;
    switch (skew) {
    case SKEW_ONE: return (int32_t)experts - 1;
    case SKEW_STRONG:
        if (check_below(random, 8))
            return 0;
        break;
    case SKEW_EMPTY: return -1;
    case SKEW_NONE:
    case SKEWS: break;
    }
    return (int32_t)check_below(random, experts + 1) - 1;
}

static void routing_init(struct routing *routing, const struct check_layer *layer, enum skew skew, struct check_random *random)
{
    uint32_t hidden = layer->layout.hidden;
    size_t values = (size_t)routing->tokens * hidden, slots = (size_t)routing->tokens * routing->top_k;

    routing->memory = malloc((1 + values) * sizeof(uint16_t));
    routing->x = routing->memory + 1;
    routing->ids = malloc((slots + 1) * sizeof(int32_t));
    routing->weights = malloc((slots + 1) * sizeof(float));
    for (size_t i = 0; i < values; i++)
        routing->x[i] = kernels_bf16_of_f32(check_float(random) * 2.0f);
    for (size_t i = 0; i < slots; i++) {
        routing->ids[i] = random_id(layer->layer.expert_count, skew, random);
        routing->weights[i] = check_float(random);
    }
    /* A token that is not a number: its company must not see it. */
    if (routing->tokens > 2)
        routing->x[hidden + hidden / 2] = 0x7fc1;
}

static void routing_release(struct routing *routing)
{
    free(routing->memory);
    free(routing->ids);
    free(routing->weights);
}

/* Members that are not through go on in random order, now and then to the next pause only. */
static void run_phase(struct phases *phases, uint32_t phase, uint32_t members, struct check_random *random)
{
    uint32_t left[PHASES_MEMBERS_MAX], count = members;

    for (uint32_t m = 0; m < members; m++)
        left[m] = m;
    while (count > 0) {
        uint32_t i = check_below(random, count);
        _Atomic uint64_t progress = 0;
        _Atomic bool pause = check_below(random, 2);

        if (phases_run(phases, phase, left[i], check_below(random, 4) ? &pause : NULL, &progress))
            left[i] = left[--count];
        if (progress == 0)
            check_fail("phases: member %u did nothing in phase %u", left[i], phase);
    }
}

static void check_cost(const struct phases *phases, const struct check_layer *layer, const struct routing *routing)
{
    struct phases_cost cost = phases_cost(phases);
    uint64_t routed = routing->top_k ? 0 : routing->tokens, shared = 0, hidden = layer->layout.hidden;

    for (size_t i = 0; i < (size_t)routing->tokens * routing->top_k; i++)
        routed += routing->ids[i] >= 0;
    if (routing->top_k && layer->layer.shared_layout)
        shared = routing->tokens;
    if (cost.params != 3 * hidden * (routed * layer->layout.neurons + shared * layer->shared_layout.neurons) ||
        cost.tile_tokens != routed + shared || cost.tiles > cost.tile_tokens || (cost.tiles == 0) != (cost.tile_tokens == 0) ||
        cost.weight_bytes > routed * layer->layout.expert_bytes + shared * layer->shared_layout.expert_bytes)
        check_fail("phases: cost of %llu params, %llu tiles of %llu tokens", (unsigned long long)cost.params,
                   (unsigned long long)cost.tiles, (unsigned long long)cost.tile_tokens);
}

static void run_members(const struct check_layer *layer, const struct routing *routing, uint32_t members, bool bf16, const void *want,
                        const char *tier, struct check_random *random)
{
    size_t bytes = (size_t)routing->tokens * layer->layout.hidden * (bf16 ? 2 : 4);
    /* Room for more than this job, as a session has it. */
    size_t room =
        phases_scratch_bytes(&layer->layer, routing->tokens + check_below(random, 3), routing->top_k + check_below(random, 2), members);
    struct check_guarded partial = check_guarded_new(bytes, bf16 ? 2 : 4), scratch = check_guarded_new(room, 0);
    struct phases_job job = {
        .layer = &layer->layer,
        .dense = routing->top_k == 0,
        .tokens = routing->tokens,
        .top_k = routing->top_k,
        .x = routing->x,
        .ids = routing->ids,
        .weights = routing->weights,
        .bf16 = bf16,
        .partial = partial.data,
    };
    struct phases phases;
    char what[80];

    phases_begin(&phases, &job, members, scratch.data);
    for (uint32_t phase = 0; phase < phases_count(&phases); phase++)
        run_phase(&phases, phase, members, random);
    snprintf(what, sizeof(what), "%u tokens in phases by %u members", routing->tokens, members);
    check_same(what, tier, partial.data, want, bytes);
    check_cost(&phases, layer, routing);
    if (!check_guarded_free(&partial))
        check_fail("phases: %s wrote outside the partial", tier);
    if (!check_guarded_free(&scratch))
        check_fail("phases: %s wrote outside its scratch", tier);
}

/* Each token alone, by the reference. */
static void each_alone(const struct check_layer *layer, const struct routing *routing, float *ret_y)
{
    size_t hidden = layer->layout.hidden;

    for (uint32_t t = 0; t < routing->tokens; t++) {
        struct run_input input = {
            .tokens = 1,
            .top_k = routing->top_k,
            .x = routing->x + t * hidden,
            .ids = routing->ids + (size_t)t * routing->top_k,
            .weights = routing->weights + (size_t)t * routing->top_k,
        };

        run_forward(layer, &input, "ref", ret_y + t * hidden);
    }
}

/* Every tier, a reference that is as slow as it is only with few tokens. */
static void check_routing(const struct check_layer *layer, const struct routing *routing, struct check_random *random)
{
    static const uint32_t usual[] = {1, 2, 3, 4, 5, 6, 7, 8, 64};
    size_t values = (size_t)routing->tokens * layer->layout.hidden, count;
    const struct tiers_variant *variants = tiers_variants(&count);
    float *f32 = calloc(values + 1, sizeof(float));
    uint16_t *bf16 = calloc(values + 1, sizeof(uint16_t));

    each_alone(layer, routing, f32);
    kernels_to_bf16(bf16, f32, values);
    for (size_t v = 0; v < count; v++) {
        bool all = variants[v].tier != KERNELS_REF && routing->tokens < 100;

        if (!kernels_tier_available(variants[v].tier))
            continue;
        kernels_select(variants[v].name, NULL);
        for (size_t m = 0; m < (all ? sizeof(usual) / sizeof(usual[0]) : 1); m++) {
            uint32_t members = all ? usual[m] : 1 + check_below(random, 9);
            bool short_ones = check_below(random, 2);

            run_members(layer, routing, members, short_ones, short_ones ? (const void *)bf16 : f32, variants[v].name, random);
        }
    }
    free(f32);
    free(bf16);
}

static void check_shape(const struct check_shape *shape, const uint32_t *tokens, size_t token_counts, struct check_random *random)
{
    struct check_layer layer;
    unsigned failed = check_failed;

    check_layer_init(&layer, shape, CHECK_SCALES_USUAL, random);
    for (size_t i = 0; i < token_counts; i++)
        for (int skew = 0; skew < SKEWS; skew++) {
            struct routing routing = {.tokens = tokens[i], .top_k = 1 + check_below(random, 8)};

            if (skew != SKEW_NONE && tokens[i] < 3)
                continue;
            if (skew == SKEW_EMPTY && shape->experts && check_below(random, 2))
                routing.top_k = 0;
            routing_init(&routing, &layer, (enum skew)skew, random);
            check_routing(&layer, &routing, random);
            if (check_failed != failed)
                printf("     with %u tokens, top_k %u, skew %d; hidden %u, neurons %u .. %u padded to %u, %u experts, shared %u\n",
                       routing.tokens, routing.top_k, skew, shape->hidden, shape->begin, shape->begin + shape->neurons, shape->pad_to,
                       shape->experts, shape->shared_neurons);
            failed = check_failed;
            routing_release(&routing);
        }
    check_layer_release(&layer);
}

/* Experts that nobody wants lie in pages that cannot be read. */
static void check_untouched(struct check_random *random)
{
    struct check_shape shape = {.hidden = 512, .neurons = 64, .pad_to = 16, .experts = 5};
    struct check_layer layer;
    struct routing routing = {.tokens = 9, .top_k = 2};
    size_t page = (size_t)sysconf(_SC_PAGESIZE), each, all;
    uint8_t *map;

    check_layer_init(&layer, &shape, CHECK_SCALES_USUAL, random);
    each = (size_t)layer.layout.expert_bytes;
    all = (shape.experts * each + page - 1) / page * page;
    map = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(map, layer.packed, shape.experts * each);
    layer.layer.experts = map;
    routing_init(&routing, &layer, SKEW_EMPTY, random);
    for (uint32_t i = 0; i < routing.tokens * routing.top_k; i++)
        routing.ids[i] = i % 3 == 0 ? 3 : i % 3 == 1 ? 1 : -1;
    for (uint32_t e = 0; e < shape.experts; e += 2) {
        size_t begin = (e * each + page - 1) / page * page, end = (e + 1) * each / page * page;

        if (end <= begin || mprotect(map + begin, end - begin, PROT_NONE) != 0)
            check_fail("phases: expert %u cannot be protected", e);
    }
    check_routing(&layer, &routing, random);
    munmap(map, all);
    routing_release(&routing);
    check_layer_release(&layer);
}

/* Room is bounded however many tokens there are, and never shrinks with a number that grows. */
static void check_room(struct check_random *random)
{
    struct layout_mlp layout;
    struct kernels_layer layer = {.layout = &layout, .expert_count = 128};
    struct err err;

    layout_mlp_init(&layout, 7168, 0, 2048, 128, &err);
    if (phases_scratch_bytes(&layer, UINT32_MAX, 8, 1) != phases_scratch_bytes(&layer, 30846, 8, 1) ||
        phases_scratch_bytes(&layer, UINT32_MAX, 8, 4) > PHASES_CHUNK_BYTES + (4 << 20))
        check_fail("phases: scratch of %zu bytes", phases_scratch_bytes(&layer, UINT32_MAX, 8, 4));
    for (int i = 0; i < 1000; i++) {
        uint32_t tokens = check_below(random, 600), top_k = check_below(random, KERNELS_TOP_K_MAX), members = 1 + check_below(random, 63);
        size_t room = phases_scratch_bytes(&layer, tokens, top_k, members);

        if (phases_scratch_bytes(&layer, tokens + 1, top_k, members) < room ||
            phases_scratch_bytes(&layer, tokens, top_k + 1, members) < room ||
            phases_scratch_bytes(&layer, tokens, top_k, members + 1) < room)
            check_fail("phases: scratch shrinks at %u tokens, top_k %u, %u members", tokens, top_k, members);
    }
}

void check_phases(struct check_random *random)
{
    static const struct check_shape shapes[] = {
        {144, 96, 72, 32, 9, 144}, {600, 112, 16, 16, 4, 0}, {64, 48, 16, 16, 0, 48}, {33, 0, 1, 16, 3, 40}, {48, 240, 300, 16, 6, 0},
    };
    static const struct check_shape small = {17, 16, 24, 16, 5, 16};
    static const uint32_t few[] = {0, 1, 3, 4, 5, 67}, many[] = {129, 513, 1100};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        check_shape(&shapes[i], few, sizeof(few) / sizeof(few[0]), random);
    for (int i = 0; i < 4; i++) {
        struct check_shape shape = {
            .hidden = 1 + check_below(random, 300),
            .begin = 16 * check_below(random, 20),
            .neurons = 1 + check_below(random, 100),
            .pad_to = 16u << check_below(random, 4),
            .experts = 1 + check_below(random, 12),
            .shared_neurons = check_below(random, 2) ? 1 + check_below(random, 100) : 0,
        };
        uint32_t tokens = 5 + check_below(random, 40);

        check_shape(&shape, &tokens, 1, random);
    }
    check_shape(&small, many, sizeof(many) / sizeof(many[0]), random);
    check_untouched(random);
    check_room(random);
}
