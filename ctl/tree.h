/* The command tree as one table: the parser, --help and the completion script all read it (tree.c). */
#ifndef FP9_CTL_TREE_H
#define FP9_CTL_TREE_H

#include <stddef.h>

#include "ctl/ctl.h"

#define TREE_ARGS_MAX 2
#define TREE_OPTIONS_MAX 12

enum tree_type {
    TREE_FLAG,
    TREE_TEXT,
    TREE_INT,  /* low..high */
    TREE_SIZE, /* bytes with K M G T; at least low */
    TREE_PATH, /* made absolute when it becomes a param */
};

struct tree_option {
    const char *name;  /* "--tp" */
    const char *value; /* "N" in the help; NULL for a flag */
    enum tree_type type;
    const char *param; /* the method's param it becomes, or NULL: the command looks at it itself */
    long long low, high;
    const char *const *choices; /* TREE_TEXT: NULL-terminated list, or NULL */
    const char *doc;
    bool required;
    const char *needs, *excludes; /* another option of the command, which must or must not be given as well; NULL: none */
};

struct tree_arg {
    const char *name; /* "N"; NULL: none */
    enum tree_type type;
    const char *param;
    long long low, high;
    bool optional; /* the last one only; args->args has NULL for it then */
    const char *const *choices;
};

struct parse_args;

struct tree_command {
    const char *name;                    /* "model list": one or two words */
    struct tree_arg args[TREE_ARGS_MAX]; /* needed, but for optional ones */
    const struct tree_option *options;
    size_t option_count;
    bool needs_option; /* at least one of the options must be given */
    enum ctl_exit (*run)(struct ctl *ctl, const struct parse_args *args);
    const char *doc;
};

/* What the interface has and this version does not: it is refused by this name, which is another answer than a typing error's. */
struct tree_later {
    const char *command;
    const char *option; /* NULL: the command itself */
};

extern const struct tree_later tree_later[];
extern const size_t tree_later_count;
extern const struct tree_command tree_commands[];
extern const size_t tree_command_count;
extern const struct tree_option tree_globals[];
extern const size_t tree_global_count;

#endif
