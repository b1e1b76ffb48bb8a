/* PURE. Which rank holds which slice: model + tp + multiple_of + strategy -> ranks, bytes, legal points, refusals with numbers. */
#ifndef FP9_MODEL_PLAN_H
#define FP9_MODEL_PLAN_H

#include "daemon/model/arch.h"
#include "kernels/layout.h"
#include "proto/base/digest.h"

#define PLAN_TP_MAX 1024

/* How ranks share a model.
 *
 * A plan has `tp` ranks in all. Every dense layer's MLP and every shared expert is split over all of them. The routed experts are divided
 * by id over `groups` groups of `width` ranks, tp = groups * width: rank r is member r % width of group r / width. A group owns the run
 * [expert_first, expert_first + expert_count) of every MoE layer's experts, the runs as even as can be, longer ones first; each of its
 * ranks holds a slice of those, split over the width. So every expert has one owner, and a step of a MoE layer without a shared expert
 * concerns only the groups that own an expert that is asked for.
 *
 *     tp        groups = 1, width = tp: every rank has a slice of every expert
 *     ep        groups = tp, width = 1: every expert lies whole on one rank
 *     tpNxepM   groups = M, width = N, tp = N * M; tp1xepM is ep, tpNxep1 is tp
 *
 * A gated shared expert is the last of the routed ones (arch.h) and has one owner as they have.
 *
 * The prediction (plan_predict.c). Per token and layer, in seconds:
 *     the slowest rank: the larger of its bytes of the active experts / read_bytes_per_s and their weights / params_per_s
 *   + ranks that take part * (bytes of x, ids and weights out + bytes of a BF16 partial back) / link_bytes_per_s
 *   + step_s
 * and tokens/s = 1 / (sum over layers + host_s). Attention and sampling are not counted but for what host_s says.
 * With several groups the slowest rank of a MoE layer is one of the group with most of the token's experts, and as many experts are counted
 * as such a group has in the mean over routings. The k experts of a token are taken for k of all E at random, all sets as likely (the
 * multivariate hypergeometric distribution): with groups of e_g experts, the sets that have at most m of any group are
 *     N(m) = the coefficient of z^k in the product over g of (sum over j <= m of C(e_g, j) z^j)
 * in number, hence E[max] = sum over m >= 0 of (1 - N(m) / C(E, k)). Ranks that take part: all, or without a shared expert width times the
 * expected number of groups with an active expert, the sum over g of (1 - C(E - e_g, k) / C(E, k)). Trained routers are less even than
 * that, so a real fleet waits longer. */
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

/* Which plans are asked for, or that of a plan. Zeros: left to the planner, which takes tp. */
struct plan_strategy {
    uint32_t width;  /* ranks that split an expert; 0: all there are */
    uint32_t groups; /* 0: as many as there are ranks */
};
#define PLAN_TP ((struct plan_strategy){.groups = 1})
#define PLAN_EP ((struct plan_strategy){.width = 1})
#define PLAN_STRATEGY_TEXT 32
/* "tp", "ep", "tp2xep4"; a left-out one is "tp". Returns text. */
const char *plan_strategy_name(struct plan_strategy strategy, char text[PLAN_STRATEGY_TEXT]);
/* The same, and tp1xepM, tpNxep1. */
int plan_strategy_parse(const char *text, struct plan_strategy *ret_strategy, struct err *err);
/* A left-out one is tp. */
bool plan_strategy_same(struct plan_strategy a, struct plan_strategy b);
bool plan_strategy_given(struct plan_strategy strategy);
struct plan;
/* The plan is what the strategy asks for. */
bool plan_strategy_fits(struct plan_strategy strategy, const struct plan *plan);
/* Ranks of tpNxepM; 0: the strategy leaves that open. */
uint32_t plan_strategy_ranks(struct plan_strategy strategy);

/* What is asked; 0 = the planner chooses (best predicted decode rate that fits). */
struct plan_request {
    uint32_t tp; /* ranks in all; with tpNxepM also N, or left out */
    uint32_t multiple_of;
    struct plan_strategy strategy;
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
    struct plan_slice routed; /* of every routed expert that it holds */
    uint32_t group;
    uint32_t expert_first, expert_count; /* of every MoE layer's routed experts, those it holds; zeros when there are none */
    struct plan_slice shared;
    uint64_t dense_slot_bytes; /* one dense layer's slot */
    uint64_t moe_slot_bytes;   /* one MoE layer's slot */
    uint64_t bytes;            /* all layers */
    uint64_t send_bytes;       /* over its link in a cold load */
    uint64_t read_bytes;       /* of the checkpoint, for this rank alone */
};

struct plan_legal {
    uint32_t multiple_of;
    uint32_t tp_max;       /* ranks at most by the strategy; of tp the units of the narrowest layer kind */
    uint32_t tp_max_fleet; /* the same, at most `ducks` (or tp_max when ducks is 0) */
};

struct plan {
    uint32_t tp, multiple_of;
    uint32_t groups, width; /* tp = groups * width */
    struct plan_strategy strategy;
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
    uint64_t link_bytes;         /* over one duck's link for a token of decode that it has a part in at every layer, out and back */
    uint64_t head_link_bytes;    /* over the head's: of all ranks, or in the mean of those that a token's routing concerns */
    double slowest_experts;      /* active experts of a token and MoE layer that the slowest rank has, in the mean; 0: no MoE layer */
    double active_groups;        /* groups with one, in the mean */
    struct plan_rates rates;     /* by which was predicted: none is 0 but params_per_s and host_s */
    struct plan_prediction predicted;
    char explanation[512]; /* why tp and multiple_of are these, in words */
};

/* tp 0 means "choose" here: a front end that got an explicit 0 from a person refuses it itself.
 * BAD_SHAPE refusals read like "moe_intermediate_size 768 = 6 units of 128: tp is at most 6; 64 allows 12, 32 allows 24"; NO_MEMORY says
 * needs and has per rank.
 * A tp larger than `ducks` is refused (values "tp", "ducks"). */
int plan_make(const struct arch *arch, const struct plan_request *request, struct plan **ret_plan, struct err *err);
void plan_free(struct plan *plan);
CLEANUP_DEFINE(struct plan *, plan_free);

/* Units u of I neurons, rank r of tp: the run of whole units, as even as can be, longer runs first. */
struct plan_slice plan_slice_of(uint32_t intermediate, uint32_t multiple_of, uint32_t tp, uint32_t rank);

/* What a slot's record of its sources holds (checkpoint_layer_sources gives that of the layer): experts that are divided otherwise make
 * another slot of the same bytes, so both parts of the digest are taken with the division. Of a dense layer, and with one group, it stays
 * as it is. In place. */
#define PLAN_SOURCES_FRONT 8 /* bytes of it that stand for shapes and scales alone, and are told apart by themselves */
int plan_slot_sources(const struct arch *arch, const struct plan *plan, uint32_t layer, uint8_t sources[DIGEST_SIZE]);

/* Whom steps concern; all that has to be known of a plan for that. */
struct plan_owners {
    uint32_t experts, groups, width;
    bool shared; /* every rank has a share of every MoE layer */
};
struct plan_owners plan_owners_of(const struct arch *arch, const struct plan *plan);
/* Marks the ranks that a step concerns, [groups * width]: all, but for a MoE layer without a shared expert those that hold one of the ids,
 * each -1 or below the layer's experts. ids NULL: all. Returns their number. */
uint32_t plan_owners_asked(const struct plan_owners *owners, bool moe, const int32_t *ids, size_t count, bool *ret_asked);

/* The slot of one layer on one rank. */
int plan_layouts(const struct arch *arch, const struct plan *plan, uint32_t layer, uint32_t rank, struct layout_mlp *ret_layout,
                 bool *ret_has_shared, struct layout_mlp *ret_shared, struct err *err);

#endif
