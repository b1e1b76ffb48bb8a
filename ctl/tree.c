#include "ctl/tree.h"

#include "ctl/commands.h"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))
#define OPTIONS(table) .options = table, .option_count = COUNT(table)

static const char *const multiples[] = {"128", "64", "32", "16", "8", NULL};
static const char *const dtypes[] = {"f32", "bf16", NULL};
static const char *const shells[] = {"bash", NULL};

const struct tree_option tree_globals[] = {
    {"--socket", "PATH", TREE_TEXT, .doc = "fp9d's control socket; else $FP9_SOCKET, else " FP9_SOCKET_DEFAULT},
    {"--json", .doc = "one JSON object on standard output"},
    {"--help", .doc = "this text, or that of the command"},
    {"--version", .doc = "print the version"},
};
const size_t tree_global_count = COUNT(tree_globals);

/* The plan of a model; "needs" as in struct tree_option. */
#define TP(NEEDS)                                                                                                                          \
    {                                                                                                                                      \
        "--tp", "N", TREE_INT, "tp", 1, 1024, .doc = "ranks in all; the planner's choice when left out", .needs = NEEDS                    \
    }
#define MULTIPLE_OF(NEEDS)                                                                                                                 \
    {                                                                                                                                      \
        "--multiple-of", "M", TREE_INT, "multiple_of", 0, 1 << 30, multiples, .doc = "unit of slicing: 128, 64, 32, 16 or 8 neurons",      \
                                                                              .needs = NEEDS                                               \
    }
#define STRATEGY(NEEDS)                                                                                                                    \
    {                                                                                                                                      \
        "--strategy", "S", TREE_TEXT, "strategy", .doc = "how experts are divided: tp (when left out), ep or tpNxepM", .needs = NEEDS      \
    }

static const struct tree_option plan_options[] = {
    TP(NULL),
    MULTIPLE_OF(NULL),
    STRATEGY(NULL),
    {"--ducks", "N", TREE_INT, "ducks", 1, 1024, .doc = "plan for N ducks; the fleet's when left out"},
    {"--memory", "BYTES", TREE_SIZE, "memory", 1, .doc = "weight buffer of each duck; K M G T are powers of 1024"},
    {"--mtp", .param = "mtp", .doc = "with the layers for multi-token prediction"},
    {"--read-rate", "BYTES", TREE_SIZE, "read_rate", 1, .doc = "predict with so many bytes/s of each duck's memory"},
    {"--mparam-rate", "N", TREE_INT, "mparam_rate", 1, 1000000000, .doc = "predict with kernels of N million weights/s a duck"},
    {"--link-rate", "BYTES", TREE_SIZE, "link_rate", 1, .doc = "predict with so many bytes/s of the head's link"},
    {"--step-us", "N", TREE_INT, "step_us", 1, 1000000000, .doc = "predict with N microseconds a step besides its bytes"},
    {"--host-us", "N", TREE_INT, "host_us", 1, 1000000000, .doc = "predict with N microseconds on the host a token"},
};

static const struct tree_option load_options[] = {
    {"--name", "N", TREE_TEXT, "name", .doc = "the model's name; the directory's last part when left out"},
    TP(NULL),
    MULTIPLE_OF(NULL),
    STRATEGY(NULL),
    {"--force", .param = "force", .doc = "prepare every slot anew"},
    {"--mtp", .param = "mtp", .doc = "also the layers for multi-token prediction"},
    {"--no-wait", .doc = "print the job and return at once"},
};

static const struct tree_option unload_options[] = {
    {"--drop-cache", .param = "drop_cache", .doc = "also free its slots on the ducks"},
};

static const struct tree_option verify_options[] = {
    {"--full", .param = "full", .doc = "also compare with the checkpoint, which is read for it"},
};

static const struct tree_option invalidate_options[] = {
    {"--model", "N", TREE_TEXT, "model", .doc = "only this model's slots; a name, or 6 or more digits of a model key",
     .excludes = "--all"},
    {"--duck", "D", TREE_TEXT, "duck", .doc = "only this duck's slots", .excludes = "--all"},
    {"--all", .param = "all", .doc = "every slot of every duck"},
};

static const struct tree_option prepare_options[] = {
    {"--layer", "L", TREE_INT, "layer", 0, 1023, .doc = "only this layer"},
    {"--from", "FILE", TREE_TEXT, .doc = "weights by way of memory: a safetensors file with the tensors of whole layers"},
    {"--path", "DIR", TREE_PATH, "path", .doc = "with --from: of a new model N, the directory of its config.json", .needs = "--from"},
    TP("--from"),
    MULTIPLE_OF("--from"),
    STRATEGY("--from"),
};

static const struct tree_option step_options[] = {
    {"--layer", "L", TREE_INT, NULL, 0, 1023, .doc = "index of the layer, from 0", .required = true},
    {"--input", "FILE", TREE_TEXT, .doc = "safetensors with input and, for a MoE layer, topk_ids and topk_weights", .required = true},
    {"--prefix", "P", TREE_TEXT, .doc = "in front of these tensors' names in FILE"},
    {"--output", "FILE", TREE_TEXT, .doc = "safetensors to write, with the tensor output", .required = true},
    {"--partials", "TYPE", TREE_TEXT, .choices = dtypes, .doc = "type of the ranks' partial sums; fp9d's setting when left out"},
    {"--output-dtype", "TYPE", TREE_TEXT, .choices = dtypes, .doc = "type of the output; bf16 when left out"},
    {"--one-shot", .doc = "a fresh kernel run for each step"},
};

static const struct tree_option bench_options[] = {
    {"--tokens", "T", TREE_INT, NULL, 1, 1000000, .doc = "tokens to decode, or repeats of the prefill; 32, or 1 with --prefill"},
    {"--prefill", "T", TREE_INT, NULL, 1, 4096, .doc = "prefill of T tokens instead of decode"},
    {"--one-shot", .doc = "a fresh kernel run for each step"},
    {"--ring", .doc = "steps through shared memory; also the choice when neither way is named, where fp9d offers it"},
    {"--json-path", .doc = "steps as JSON lines", .excludes = "--ring"},
    {"--clients", "C", TREE_INT, NULL, 1, 64, .doc = "clients at once, each with a connection of its own; 1"},
    {"--null", .doc = "expert ids all -1: only the way there and back (MoE layers only)"},
    {"--seed", "S", TREE_INT, NULL, 0, 1000000000, .doc = "of the random inputs and routing; 1"},
};

static const struct tree_option top_options[] = {
    {"--interval", "S", TREE_INT, NULL, 1, 3600, .doc = "seconds between two looks; 1"},
};

static const struct tree_option trace_options[] = {
    {"--output", "FILE", TREE_TEXT, .doc = "write it there; to standard output when left out"},
    {"--seed", "S", TREE_INT, NULL, 0, 1000000000, .doc = "of the random inputs and routing; 1"},
};

static const struct tree_option events_options[] = {
    {"--count", "N", TREE_INT, NULL, 1, 1000000000, .doc = "end after N lines"},
};

#define MODEL_ARG                                                                                                                          \
    {                                                                                                                                      \
        "N", TREE_TEXT, "model"                                                                                                            \
    }
#define JOB_ARG                                                                                                                            \
    {                                                                                                                                      \
        "J", TREE_INT, "job", 1, 9007199254740991                                                                                          \
    }
#define DIR_ARG                                                                                                                            \
    {                                                                                                                                      \
        "DIR", TREE_PATH, "path"                                                                                                           \
    }

/* In the order of the help. */
const struct tree_command tree_commands[] = {
    {"status", .run = show_status, .doc = "the daemon, its ducks and models"},
    {"duck list", .run = show_ducks, .doc = "the ducks of the fleet"},
    {"duck show", {{"D", TREE_TEXT}}, .run = show_duck, .doc = "one duck, by name or id"},
    {"plan",
     {DIR_ARG},
     OPTIONS(plan_options),
     .run = admin_plan,
     .doc = "how the checkpoint in DIR would be spread; reads only config.json"},
    {"load", {DIR_ARG}, OPTIONS(load_options), .run = admin_load, .doc = "spread the checkpoint in DIR over the ducks"},
    {"unload", {MODEL_ARG}, OPTIONS(unload_options), .run = admin_unload, .doc = "take model N out of service"},
    {"model list", .run = show_models, .doc = "the registered models"},
    {"model show", {{"N", TREE_TEXT}}, .run = show_model, .doc = "one model"},
    {"prepare", {MODEL_ARG}, OPTIONS(prepare_options), .run = admin_prepare, .doc = "prepare model N's missing slots"},
    {"cache list", .run = show_cache, .doc = "the slots in the ducks' weight buffers"},
    {"cache verify",
     {{"N", TREE_TEXT, "model", .optional = true}},
     OPTIONS(verify_options),
     .run = admin_verify,
     .doc = "compute the slots' checksums again, of all models or of N"},
    {"invalidate-cache", OPTIONS(invalidate_options), .needs_option = true, .run = admin_invalidate, .doc = "forget slots"},
    {"decode", {{"N", TREE_TEXT}}, OPTIONS(step_options), .run = step_decode, .doc = "input through one layer of model N, token by token"},
    {"prefill",
     {{"N", TREE_TEXT}},
     OPTIONS(step_options),
     .run = step_prefill,
     .doc = "input through one layer of model N, all tokens at once"},
    {"bench", {{"N", TREE_TEXT}}, OPTIONS(bench_options), .run = bench_run, .doc = "every layer of model N once per token, timed"},
    {"trace",
     {{"N", TREE_TEXT}},
     OPTIONS(trace_options),
     .run = trace_run,
     .doc = "one token through every layer of model N, as a timeline for chrome://tracing or Perfetto"},
    {"session list", .run = show_sessions, .doc = "the open sessions"},
    {"job list", .run = show_jobs, .doc = "the jobs that are known"},
    {"job show", {JOB_ARG}, .run = show_job, .doc = "one job"},
    {"job wait", {JOB_ARG}, .run = admin_job_wait, .doc = "wait for a job and print its result"},
    {"job cancel", {JOB_ARG}, .run = admin_job_cancel, .doc = "stop a job"},
    {"metrics", .run = metrics_print, .doc = "what is counted, as Prometheus reads it, or with --json one object"},
    {"events", OPTIONS(events_options), .run = events_run, .doc = "what happens from now on, a line for each"},
    {"top", OPTIONS(top_options), .run = top_run, .doc = "ducks and sessions with their rates, drawn anew on a terminal"},
    {"completion", {{"SHELL", TREE_TEXT, .choices = shells}}, .run = help_completion, .doc = "print a completion script; SHELL is bash"},
};
const size_t tree_command_count = COUNT(tree_commands);

const struct tree_later tree_later[] = {
    {"doctor", NULL}, {"duck add", NULL}, {"duck add", "--key-file"}, {"duck add", "--spare"}, {"duck drain", NULL}, {"duck remove", NULL},
};
const size_t tree_later_count = COUNT(tree_later);
