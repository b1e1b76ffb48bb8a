/* PURE. Which duck holds which slice: model + tp + multiple_of + strategy -> ranks, bytes, legal points, refusals with numbers. */
#ifndef FP9_MODEL_PLAN_H
#define FP9_MODEL_PLAN_H

#include "daemon/model/arch.h"
#include "kernels/layout.h"

#define PLAN_TP_MAX 1024

/* The prediction (plan_predict.c). Per token and layer, in seconds:
 *     the slowest rank: the larger of its bytes of the active experts / read_bytes_per_s and their weights / params_per_s
 *   + tp * (bytes of x, ids and weights out + bytes of a BF16 partial back) / link_bytes_per_s
 *   + step_s
 * and tokens/s = 1 / (sum over layers + host_s). Attention and sampling are not counted but for what host_s says. */
#define PLAN_DUCK_READ_BYTES_PER_S 20e9 /* memory of one duck: a mini PC with dual-channel DDR4 */
#define PLAN_LINK_BYTES_PER_S 1.25e9    /* the head's link, shared by all ducks: 10 GbE */
#define PLAN_STEP_S 60e-6               /* a step's round trip without its bytes */
#define PLAN_TP_AUTO_MAX 32             /* widest tp the planner chooses by itself while the number of ducks is unknown */
#define PLAN_MULTIPLES 5
extern const uint32_t plan_multiples[PLAN_MULTIPLES]; /* 128, 64, 32, 16, 8 */

struct plan_rates {
    double read_bytes_per_s; /* memory of one duck; 0: PLAN_DUCK_READ_BYTES_PER_S */
    double params_per_s;     /* weights that one duck's kernels apply; 0: memory is the only limit */
    double link_bytes_per_s; /* the head's; 0: PLAN_LINK_BYTES_PER_S */
    double step_s;           /* 0: PLAN_STEP_S */
    double host_s;           /* a token's time on the host: attention, sampling; 0: not counted */
};

enum plan_term {
    PLAN_TERM_MEMORY,
    PLAN_TERM_COMPUTE,
    PLAN_TERM_LINK,
    PLAN_TERM_STEP,
    PLAN_TERM_HOST,
};
const char *plan_term_name(enum plan_term term); /* "duck memory" */

/* One token's time by term, in seconds. duck_s is what read_s and compute_s make together, layer by layer. */
struct plan_prediction {
    double read_s, compute_s, duck_s, link_s, step_s, host_s;
    double tokens_per_second;
    enum plan_term bottleneck; /* the largest of duck_s (whichever of its two parts is larger), link_s, step_s, host_s */
};

enum plan_strategy {
    PLAN_TP,
};
const char *plan_strategy_name(enum plan_strategy strategy);
int plan_strategy_parse(const char *text, enum plan_strategy *ret_strategy, struct err *err);

/* What is asked; 0 = the planner chooses (best predicted decode rate that fits). */
struct plan_request {
    uint32_t tp;
    uint32_t multiple_of;
    enum plan_strategy strategy;
    uint32_t ducks;          /* live ducks that may take a rank; 0: unknown, every tp up to the units is allowed */
    uint64_t memory_bytes;   /* weight buffer bytes free for this model on the smallest of those ducks; 0: unknown, not checked */
    struct plan_rates rates; /* for the prediction, by which is chosen too */
};

/* A run of intermediate neurons. */
struct plan_slice {
    uint32_t begin;
    uint32_t neurons; /* real ones */
    uint32_t padded;  /* whole units */
};

struct plan_rank {
    struct plan_slice dense;  /* of every dense layer; zeros when the model has none */
    struct plan_slice routed; /* of every routed expert */
    struct plan_slice shared;
    uint64_t dense_slot_bytes; /* one dense layer's slot */
    uint64_t moe_slot_bytes;   /* one MoE layer's slot */
    uint64_t bytes;            /* all layers */
    uint64_t send_bytes;       /* over its link in a cold load */
    uint64_t read_bytes;       /* of the checkpoint, for this rank alone */
};

struct plan_legal {
    uint32_t multiple_of;
    uint32_t tp_max;       /* units of the narrowest layer kind */
    uint32_t tp_max_fleet; /* the same, at most `ducks` (or tp_max when ducks is 0) */
};

struct plan {
    uint32_t tp, multiple_of;
    enum plan_strategy strategy;
    struct plan_legal legal[PLAN_MULTIPLES];
    struct plan_rank *ranks;     /* [tp] */
    uint64_t bytes_total;        /* over ranks, as laid out */
    uint64_t params;             /* real weights of MLP and experts */
    uint64_t padding_bytes;      /* bytes of bytes_total that hold no real weight's magnitude, sign or scale */
    double bytes_per_param;      /* bytes_total / params */
    uint64_t send_bytes;         /* raw FP8 bytes and tile scales over all links in a cold load, frame headers not counted */
    uint64_t rebuild_read_bytes; /* checkpoint bytes to read for one lost rank (the largest): its rows of gate and up, all of down,
                                   * whose slice is a piece of every row */
    uint64_t rebuild_send_bytes; /* bytes to send for it */
    double rebuild_seconds;      /* to send it at rates.link_bytes_per_s */
    uint64_t link_bytes;         /* over one duck's link for a token of decode, out and back; the head's carries tp times as much */
    struct plan_rates rates;     /* by which was predicted: none is 0 but params_per_s and host_s */
    struct plan_prediction predicted;
    char explanation[512]; /* why tp and multiple_of are these, in words */
};

/* tp 0 means "choose" here: a front end that got an explicit 0 from a person refuses it itself.
 * BAD_SHAPE refusals read like "768 = 6 units of 128: tp is at most 6; 64 allows 12, 32 allows 24"; NO_MEMORY says needs and has per rank.
 * A tp larger than `ducks` is refused (values "tp", "ducks"). */
int plan_make(const struct arch *arch, const struct plan_request *request, struct plan **ret_plan, struct err *err);
void plan_free(struct plan *plan);
CLEANUP_DEFINE(struct plan *, plan_free);

/* Units u of I neurons, rank r of tp: the run of whole units, as even as can be, longer runs first. */
struct plan_slice plan_slice_of(uint32_t intermediate, uint32_t multiple_of, uint32_t tp, uint32_t rank);

/* The slot of one layer on one rank. */
int plan_layouts(const struct arch *arch, const struct plan *plan, uint32_t layer, uint32_t rank, struct layout_mlp *ret_layout,
                 bool *ret_has_shared, struct layout_mlp *ret_shared, struct err *err);

#endif
