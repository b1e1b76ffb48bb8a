/* The command line against the tree. */
#ifndef FP9_CTL_PARSE_H
#define FP9_CTL_PARSE_H

#include <jansson.h>

#include "ctl/tree.h"

#define PARSE_MESSAGE_MAX 512

struct parse_args {
    const struct tree_command *command;    /* NULL: only global options were given, or half of a command */
    const char *group;                     /* that half: the first word of several commands; else NULL */
    const char *args[TREE_ARGS_MAX];       /* borrowed from argv */
    const char *options[TREE_OPTIONS_MAX]; /* by the command's table: NULL when absent, "" for a flag; the last one given counts */
    const char *socket;
    bool json, help, version;
    const struct tree_later *later; /* asked for, and not in this version; args and options are not complete then */
};

/* False: wrong usage; ret_message says why, and ret_args has what was read so far. */
bool parse_line(int argc, char **argv, struct parse_args *ret_args, char ret_message[PARSE_MESSAGE_MAX]);

/* An option's text by name ("--layer"), NULL when it was not given. */
const char *parse_option(const struct parse_args *args, const char *name);
long long parse_option_int(const struct parse_args *args, const char *name, long long otherwise);

/* Arguments and options that have a param, as an object; NULL when out of memory. */
json_t *parse_params(const struct parse_args *args);

#endif
