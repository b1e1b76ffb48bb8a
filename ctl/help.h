/* --help and the completion script, both written from the tree. */
#ifndef FP9_CTL_HELP_H
#define FP9_CTL_HELP_H

#include <stdio.h>

#include "ctl/tree.h"

/* Of all commands that begin with a word: "cache". */
void help_group(FILE *to, const char *first);
void help_all(FILE *to);
void help_command(FILE *to, const struct tree_command *command);

#endif
