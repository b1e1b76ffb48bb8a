#include "daemon/model/plan_experts.h"

#include <string.h>

#define DRAWN_MAX KERNELS_TOP_K_MAX
#define SURE 1e-12 /* a probability that adds nothing more */

struct plan_run plan_run_of(uint32_t experts, uint32_t groups, uint32_t group)
{
    uint32_t run = experts / groups, longer = experts % groups;
    return (struct plan_run){
        .first = group * run + (group < longer ? group : longer),
        .count = run + (group < longer),
    };
}

uint32_t plan_group_of(uint32_t experts, uint32_t groups, uint32_t expert)
{
    uint32_t run = experts / groups, longer = experts % groups;
    uint32_t in_longer = longer * (run + 1);
    return expert < in_longer ? expert / (run + 1) : longer + (expert - in_longer) / run;
}

/* Coefficients of z^0 .. z^DRAWN_MAX; none is larger than C(4096, 64), about 1e141. */
struct polynomial {
    double c[DRAWN_MAX + 1];
};

/* Up to z^degree. */
static void multiply(struct polynomial *to, const struct polynomial *by, uint32_t degree)
{
    struct polynomial product = {0};
    for (uint32_t i = 0; i <= degree; i++)
        for (uint32_t j = 0; to->c[i] > 0 && i + j <= degree; j++)
            product.c[i + j] += to->c[i] * by->c[j];
    *to = product;
}

/* Ways to take at most `most` of `size`, by their number. */
static struct polynomial ways(uint32_t size, uint32_t most, uint32_t degree)
{
    struct polynomial p = {{1}};
    for (uint32_t j = 1; j <= degree && j <= most && j <= size; j++)
        p.c[j] = p.c[j - 1] * (size - j + 1) / j;
    return p;
}

static void multiply_power(struct polynomial *to, struct polynomial base, uint32_t exponent, uint32_t degree)
{
    for (; exponent; exponent >>= 1) {
        if (exponent & 1)
            multiply(to, &base, degree);
        multiply(&base, &base, degree);
    }
}

/* Draws from groups of `run` experts, `longer` of which have one more. */
struct draws {
    uint32_t experts, groups, drawn;
    bool gated; /* the last expert is drawn besides */
};

/* The probability that no group has more than `most`. */
static double at_most(const struct draws *d, uint32_t most)
{
    uint32_t run = d->experts / d->groups, longer = d->experts % d->groups, shorter = d->groups - longer;
    struct polynomial sets = {{1}};
    if (d->gated && most == 0)
        return 0;
    if (d->gated) {
        struct polynomial last = ways(run - 1, most - 1, d->drawn); /* the last group is never a longer one */
        multiply(&sets, &last, d->drawn);
        shorter--;
    }
    multiply_power(&sets, ways(run + 1, most, d->drawn), longer, d->drawn);
    multiply_power(&sets, ways(run, most, d->drawn), shorter, d->drawn);
    return sets.c[d->drawn] / ways(d->experts - d->gated, d->drawn, d->drawn).c[d->drawn];
}

/* The probability that a group of so many has none. */
static double none_of(const struct draws *d, uint32_t size)
{
    uint32_t all = d->experts - d->gated;
    double p = 1;
    for (uint32_t i = 0; i < d->drawn && p > 0; i++)
        p *= all - size > i ? (double)(all - size - i) / (double)(all - i) : 0;
    return p;
}

struct plan_draw plan_draw_of(const struct arch *arch, uint32_t groups)
{
    struct plan_draw draw = {0};
    struct draws d = {.experts = arch->experts, .groups = groups, .gated = arch->gated_shared};
    if (!arch->experts || !arch->top_k)
        return draw;
    d.drawn = arch->top_k - d.gated;
    if (d.drawn > d.experts - d.gated)
        d.drawn = d.experts - d.gated;
    if (d.drawn > DRAWN_MAX)
        d.drawn = DRAWN_MAX;
    for (uint32_t m = 0; m < d.drawn + d.gated; m++) {
        double more = 1 - at_most(&d, m);
        if (more < SURE)
            break;
        draw.slowest += more;
    }
    uint32_t run = d.experts / groups, longer = d.experts % groups;
    draw.groups = longer * (1 - none_of(&d, run + 1)) + (groups - longer - d.gated) * (1 - none_of(&d, run)) + d.gated;
    return draw;
}
