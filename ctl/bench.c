#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ctl/commands.h"
#include "ctl/layers.h"
#include "ctl/random.h"
#include "ctl/stats.h"
#include "ctl/straggler.h"
#include "ctl/table.h"

#define CLIENTS_MAX 64

/* What every client does. */
struct bench {
    const char *model;       /* name */
    const char *layer_kinds; /* a character a layer, 'd' dense, 'm' MoE */
    uint32_t experts, top_k;
    uint32_t repeats; /* tokens of decode, or prefills */
    uint32_t tokens;  /* of one step */
    bool prefill, null_ids, one_shot;
    enum fp9_path path;
};

struct client {
    const struct bench *bench;
    struct fp9_conn *conn;
    struct fp9_session *session;
    struct random random;
    int32_t *all; /* [experts], a permutation of the ids */
    struct stats_steps steps;
    struct straggler late;
    struct stats token_us; /* time of all layers for one step of tokens */
    bool failed;
    struct fp9_error error; /* of the failure */
};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static bool client_fails(struct client *client, const char *name, const char *message)
{
    client->failed = true;
    snprintf(client->error.name, sizeof client->error.name, "%s", name);
    snprintf(client->error.message, sizeof client->error.message, "%s", message);
    snprintf(client->error.values, sizeof client->error.values, "{}");
    return false;
}

/* Fresh input and routing in the arena. */
static void fill(struct client *client, const struct fp9_places *places)
{
    const struct bench *bench = client->bench;
    random_input(&client->random, places->x, (uint64_t)bench->tokens * fp9_session_hidden_size(client->session));
    for (uint32_t t = 0; t < bench->tokens && bench->top_k; t++) {
        int32_t *ids = places->topk_ids + (size_t)t * bench->top_k;
        random_routing(&client->random, bench->experts, bench->top_k, client->all, ids, places->topk_weights + (size_t)t * bench->top_k);
        if (bench->null_ids)
            memset(ids, 0xff, bench->top_k * sizeof ids[0]); /* -1 */
    }
}

/* One step of tokens through every layer. */
static bool pass(struct client *client, bool counted)
{
    const struct bench *bench = client->bench;
    struct fp9_places places;
    double us = 0.0;
    fp9_session_places(client->session, &places);
    for (uint32_t layer = 0; bench->layer_kinds[layer]; layer++) {
        bool moe = bench->layer_kinds[layer] == 'm';
        if (bench->null_ids && !moe)
            continue;
        fill(client, &places);
        struct fp9_step step = {
            .layer = layer,
            .tokens = bench->tokens,
            .top_k = moe ? bench->top_k : 0,
            .x = places.x,
            .topk_ids = places.topk_ids,
            .topk_weights = places.topk_weights,
        };
        struct fp9_timing timing;
        if ((bench->prefill ? fp9_prefill : fp9_decode)(client->session, &step, &timing, &client->error) < 0) {
            client->failed = true;
            return false;
        }
        us += timing.job_time_us;
        if (counted)
            straggler_add(&client->late, &timing);
        if (counted && !stats_steps_add(&client->steps, &timing))
            return client_fails(client, "NO_MEMORY", "out of memory");
    }
    return !counted || stats_add(&client->token_us, us) || client_fails(client, "NO_MEMORY", "out of memory");
}

static void *client_main(void *client_)
{
    struct client *client = client_;
    for (uint32_t i = 0; i < client->bench->repeats; i++)
        if (!pass(client, true))
            break;
    return NULL;
}

static bool client_open(struct client *client, const struct bench *bench, const char *socket, uint64_t seed)
{
    struct fp9_session_options options = {.max_tokens = bench->tokens, .one_shot = bench->one_shot, .lanes = 1, .path = bench->path};
    client->bench = bench;
    client->random.state = seed;
    client->all = calloc(bench->experts + 1, sizeof client->all[0]);
    if (!client->all)
        return client_fails(client, "NO_MEMORY", "out of memory");
    for (uint32_t i = 0; i < bench->experts; i++)
        client->all[i] = (int32_t)i;
    if (fp9_connect(socket, &client->conn, &client->error) < 0 ||
        fp9_session_open(client->conn, bench->model, &options, &client->session, &client->error) < 0) {
        client->failed = true;
        return false;
    }
    if (bench->top_k > fp9_session_top_k_max(client->session))
        return client_fails(client, "BAD_SHAPE", "the model's top_k is more than a session takes");
    return pass(client, false); /* to warm up */
}

static void client_release(struct client *client)
{
    fp9_session_close(client->session, NULL);
    fp9_close(client->conn);
    free(client->all);
    stats_steps_release(&client->steps);
    stats_release(&client->token_us);
}

static enum ctl_exit run_clients(const struct ctl *ctl, struct client *clients, uint32_t count, double *ret_seconds)
{
    pthread_t threads[CLIENTS_MAX];
    uint32_t started = 0;
    double begin = now_us();
    for (; started < count; started++)
        if (pthread_create(&threads[started], NULL, client_main, &clients[started]) != 0)
            break;
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    *ret_seconds = (now_us() - begin) / 1e6;
    if (started < count)
        return ctl_fail_with(ctl, "NO_MEMORY", "only %u of %u thread%s could be started", started, count,
                             count == 1 ? "" : "s");
    for (uint32_t i = 0; i < count; i++)
        if (clients[i].failed)
            return ctl_fail(ctl, &clients[i].error);
    return CTL_DONE;
}

static void add_quantiles(json_t *result, const char *key, struct stats *stats)
{
    double p50 = stats_quantile(stats, 0.5), p99 = stats_quantile(stats, 0.99);
    json_object_set_new(result, key, json_pack("{s:o,s:o}", "p50", stats_json(p50), "p99", stats_json(p99)));
}

/* Into the first client's. */
static enum ctl_exit name_straggler(struct ctl *ctl, struct client *clients, uint32_t count, json_t **ret_straggler)
{
    json_t *ducks = NULL;
    for (uint32_t i = 1; i < count; i++)
        straggler_append(&clients[0].late, &clients[i].late);
    enum ctl_exit r = straggler_any(&clients[0].late) ? ctl_call(ctl, "duck.list", NULL, &ducks) : CTL_DONE;
    if (r)
        return r;
    *ret_straggler = straggler_json(&clients[0].late, ducks);
    json_decref(ducks);
    return CTL_DONE;
}

static enum ctl_exit report(struct ctl *ctl, const struct bench *bench, struct client *clients, uint32_t count, double seconds)
{
    json_t *straggler;
    enum ctl_exit r = name_straggler(ctl, clients, count, &straggler);
    if (r)
        return r;
    struct stats_steps steps = {0};
    struct stats token_us = {0};
    bool good = true;
    for (uint32_t i = 0; i < count; i++)
        good = good && stats_steps_append(&steps, &clients[i].steps) && stats_append(&token_us, &clients[i].token_us);
    double tokens = (double)count * bench->repeats * bench->tokens, token_sum = 0.0;
    for (size_t i = 0; i < token_us.count; i++)
        token_sum += token_us.values[i];
    json_t *result = json_object();
    json_object_set_new(result, "tokens_per_second", stats_json(tokens / seconds));
    json_object_set_new(result, "steps_per_second", stats_json((double)steps.job_time.count / seconds));
    json_object_set_new(result, "path", json_string(fp9_session_has_ring(clients[0].session) ? "ring" : "json"));
    json_object_set_new(result, "tpot_us", stats_json(token_sum / tokens));
    add_quantiles(result, "job_time_us", &steps.job_time);
    add_quantiles(result, "judge_wait_us", &steps.judge_wait);
    add_quantiles(result, "duck_max_us", &steps.duck_max);
    add_quantiles(result, "judge_gap_us", &steps.judge_gap);
    add_quantiles(result, "client_gap_us", &steps.client_gap);
    json_object_set_new(result, "judge_ratio", stats_json(stats_quantile(&steps.judge_ratio, 0.5)));
    json_object_set_new(result, "gparam_per_s", stats_json(steps.params / steps.duck_us / 1e3));
    json_object_set_new(result, "effective_read_gb_per_s", stats_json(steps.weight_bytes / steps.duck_us / 1e3));
    json_object_set_new(result, "straggler", straggler);
    stats_steps_modes(&steps, result);
    stats_steps_one_shot(&steps, false, result);
    if (bench->prefill)
        stats_steps_prefill_keys(&steps, result);
    stats_steps_release(&steps);
    stats_release(&token_us);
    if (!good)
        ctl_no_memory(ctl);
    else if (!ctl_print_json(ctl, result))
        table_print_object(result);
    json_decref(result);
    return good ? CTL_DONE : CTL_FAILED;
}

static enum ctl_exit read_model(const struct ctl *ctl, const json_t *list, struct bench *bench)
{
    struct layers layers;
    enum ctl_exit r = layers_read(ctl, list, bench->model, &layers);
    if (r)
        return r;
    if (bench->null_ids && !layers.top_k)
        return ctl_fail_with(ctl, "BAD_REQUEST", "--null: %s has no MoE layer", bench->model);
    bench->layer_kinds = layers.kinds;
    bench->experts = layers.experts;
    bench->top_k = layers.top_k;
    return CTL_DONE;
}

enum ctl_exit bench_run(struct ctl *ctl, const struct parse_args *args)
{
    bool prefill = parse_option(args, "--prefill") != NULL;
    struct bench bench = {
        .model = args->args[0],
        .prefill = prefill,
        .tokens = (uint32_t)parse_option_int(args, "--prefill", 1),
        .repeats = (uint32_t)parse_option_int(args, "--tokens", prefill ? 1 : 32),
        .null_ids = parse_option(args, "--null") != NULL,
        .one_shot = parse_option(args, "--one-shot") != NULL,
        .path = parse_option(args, "--ring")        ? FP9_PATH_RING
                : parse_option(args, "--json-path") ? FP9_PATH_JSON
                                                    : FP9_PATH_DEFAULT,
    };
    uint32_t count = (uint32_t)parse_option_int(args, "--clients", 1);
    uint64_t seed = (uint64_t)parse_option_int(args, "--seed", 1);
    json_t *list;
    enum ctl_exit r = ctl_call(ctl, "model.list", NULL, &list);
    if (r)
        return r;
    struct client *clients = calloc(count, sizeof *clients);
    double seconds = 0.0;
    r = clients ? read_model(ctl, list, &bench) : ctl_no_memory(ctl);
    for (uint32_t i = 0; r == CTL_DONE && i < count; i++)
        if (!client_open(&clients[i], &bench, ctl->socket, seed << 8 | i))
            r = ctl_fail(ctl, &clients[i].error);
    if (r == CTL_DONE)
        r = run_clients(ctl, clients, count, &seconds);
    if (r == CTL_DONE)
        r = report(ctl, &bench, clients, count, seconds);
    for (uint32_t i = 0; clients && i < count; i++)
        client_release(&clients[i]);
    free(clients);
    json_decref(list);
    return r;
}
