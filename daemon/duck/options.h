/* What fp9-duck is told: defaults, then the configuration file, then the command line. */
#ifndef FP9_DUCK_OPTIONS_H
#define FP9_DUCK_OPTIONS_H

#include <stdint.h>

#include "daemon/duck/wbuf.h"

struct options {
    char *listen;   /* owned, as all strings here; "ADDR:PORT" */
    char *key_file; /* "" none */
    bool plaintext;
    uint64_t memory;  /* bytes; 0: options_default_memory() */
    char *cores;      /* "" all */
    char *huge_pages; /* auto yes no */
    bool prealloc;
    char *spin_us;    /* "auto" or a number */
    char *name;       /* "" the host's */
    uint32_t members; /* 0: one for each CPU */
    int member_cpu;   /* of the only member; -1: any of the cores */
    int link_fd;      /* -1: none */
    int weights_fd;   /* -1: none */
    int stage_fd;     /* -1: none */
    int channel_fd;   /* -1: none */
    int bell_fd;      /* -1: none */
    bool check_config;
};
#define OPTIONS_NONE                                                                                                                       \
    {                                                                                                                                      \
        .member_cpu = -1, .link_fd = -1, .weights_fd = -1, .stage_fd = -1, .channel_fd = -1, .bell_fd = -1                                 \
    }
#define OPTIONS_USAGE 2 /* exit status for a wrong command line */

/* 0: run. Positive: exit with (value - 1), everything was said already (help, version, usage). Negative: refused, err says why.
 * The file of --config must be there; the default file need not, and is not read when --link-fd is given. */
int options_read(int argc, char **argv, struct options *ret_options, struct err *err);
void options_release(struct options *options);

uint64_t options_machine_memory(void);                   /* the machine's, or what control groups leave of it */
uint64_t options_default_memory(void);                   /* three quarters of that */
uint64_t options_spin_ns(const struct options *options); /* between steps */
enum wbuf_huge options_huge(const struct options *options);

#endif
