#include "ctl/help.h"

#include <string.h>

#include "ctl/commands.h"

static void usage_of(FILE *to, const struct tree_command *command)
{
    fprintf(to, "%s", command->name);
    for (size_t i = 0; i < TREE_ARGS_MAX && command->args[i].name; i++)
        fprintf(to, command->args[i].optional ? " [%s]" : " %s", command->args[i].name);
    for (size_t i = 0; i < command->option_count; i++) {
        const struct tree_option *option = &command->options[i];
        fprintf(to, option->required ? " %s%s%s" : " [%s%s%s]", option->name, option->value ? " " : "", option->value ? option->value : "");
    }
}

static void options_of(FILE *to, const struct tree_option *options, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", options[i].name, options[i].value ? " " : "", options[i].value ? options[i].value : "");
        fprintf(to, "  %-22s %s\n", left, options[i].doc);
    }
}

void help_command(FILE *to, const struct tree_command *command)
{
    fputs("usage: fp9ctl [--socket PATH] [--json] ", to);
    usage_of(to, command);
    char first = command->doc[0];
    fprintf(to, "\n\n%c%s.\n", first >= 'a' && first <= 'z' ? first - 'a' + 'A' : first, command->doc + 1);
    if (command->option_count) {
        fputc('\n', to);
        options_of(to, command->options, command->option_count);
    }
}

static void entry_of(FILE *to, const struct tree_command *command)
{
    fputs("  ", to);
    usage_of(to, command);
    fprintf(to, "\n      %s\n", command->doc);
}

void help_group(FILE *to, const char *first)
{
    size_t length = strlen(first);
    fprintf(to, "usage: fp9ctl [--socket PATH] [--json] %s COMMAND ...\n\nCommands (fp9ctl %s COMMAND --help says more):\n", first, first);
    for (size_t i = 0; i < tree_command_count; i++)
        if (strncmp(tree_commands[i].name, first, length) == 0 && tree_commands[i].name[length] == ' ')
            entry_of(to, &tree_commands[i]);
}

void help_all(FILE *to)
{
    fputs("usage: fp9ctl [--socket PATH] [--json] COMMAND ...\n\n", to);
    options_of(to, tree_globals, tree_global_count);
    fputs("\nCommands (fp9ctl COMMAND --help says more):\n", to);
    for (size_t i = 0; i < tree_command_count; i++)
        entry_of(to, &tree_commands[i]);
    fputs("\nExit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no daemon.\n", to);
}

static void print_first_words(void)
{
    const char *last = "";
    size_t last_length = 0;
    for (size_t i = 0; i < tree_command_count; i++) {
        const char *name = tree_commands[i].name;
        size_t length = strcspn(name, " ");
        if (length != last_length || strncmp(name, last, length) != 0)
            printf(" %.*s", (int)length, name);
        last = name;
        last_length = length;
    }
}

static void print_second_words(const char *first, size_t length)
{
    for (size_t i = 0; i < tree_command_count; i++)
        if (strncmp(tree_commands[i].name, first, length) == 0 && tree_commands[i].name[length] == ' ')
            printf(" %s", tree_commands[i].name + length + 1);
}

enum ctl_exit help_completion(struct ctl *ctl, const struct parse_args *args)
{
    (void)ctl;
    (void)args;
    fputs("_fp9ctl() {\n  local word=${COMP_WORDS[COMP_CWORD]} i list= command=\n"
          "  for ((i = 1; i < COMP_CWORD; i++)); do\n    case ${COMP_WORDS[i]} in\n"
          "    --socket) i=$((i + 1)) ;;\n    -*) ;;\n    *) command=${command:+$command }${COMP_WORDS[i]} ;;\n    esac\n  done\n"
          "  case $command in\n  '') list='",
          stdout);
    for (size_t i = 0; i < tree_global_count; i++)
        printf("%s ", tree_globals[i].name);
    print_first_words();
    fputs("' ;;\n", stdout);
    for (size_t i = 0; i < tree_command_count; i++) {
        const struct tree_command *command = &tree_commands[i];
        size_t first = strcspn(command->name, " ");
        if (command->name[first] && (i == 0 || strncmp(tree_commands[i - 1].name, command->name, first + 1) != 0)) {
            printf("  '%.*s') list='", (int)first, command->name);
            print_second_words(command->name, first);
            fputs("' ;;\n", stdout);
        }
        printf("  '%s'*) list='--help", command->name);
        for (size_t j = 0; j < command->option_count; j++)
            printf(" %s", command->options[j].name);
        fputs("' ;;\n", stdout);
    }
    fputs("  esac\n  mapfile -t COMPREPLY < <(compgen -W \"$list\" -- \"$word\")\n}\ncomplete -o default -F _fp9ctl fp9ctl\n", stdout);
    return CTL_DONE;
}
