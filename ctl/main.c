/* fp9ctl: a thin client of fp9d. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/help.h"
#include "ctl/parse.h"

static int wrong_usage(const struct ctl *ctl, const struct parse_args *args, const char *message)
{
    ctl_fail_with(ctl, "BAD_REQUEST", "%s", message);
    const char *about = args->command ? args->command->name : args->group;
    fprintf(stderr, "fp9ctl%s%s --help says what is right\n", about ? " " : "", about ? about : "");
    return CTL_USAGE;
}

int main(int argc, char **argv)
{
    struct parse_args args;
    char message[PARSE_MESSAGE_MAX];
    bool good = parse_line(argc, argv, &args, message);
    const char *no_color = getenv("NO_COLOR");
    struct ctl ctl = {
        .socket = args.socket,
        .json = args.json,
        .color = !(no_color && *no_color) && isatty(STDOUT_FILENO) == 1,
    };
    if (!good)
        return wrong_usage(&ctl, &args, message);
    if (args.later)
        return (int)ctl_fail_with(&ctl, "BAD_REQUEST", "%s%s%s is in fp9's interface, this version does not have it", args.later->command,
                                  args.later->option ? " " : "", args.later->option ? args.later->option : "");
    enum ctl_exit status = CTL_DONE;
    if (args.help && args.command)
        help_command(stdout, args.command);
    else if (args.help && args.group)
        help_group(stdout, args.group);
    else if (args.help)
        help_all(stdout);
    else if (args.version)
        printf("fp9ctl %s\n", FP9_VERSION);
    else
        status = args.command->run(&ctl, &args);
    fp9_close(ctl.conn);
    /* A full disk or a closed pipe must not pass for success. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == CTL_DONE) {
        perror("fp9ctl: standard output");
        status = CTL_FAILED;
    }
    return (int)status;
}
