#include "ctl/parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ctl/number.h"
#include "ctl/path.h"

/* What was typed, sorted into words and options, before the command is known. */
struct given {
    const char *words[TREE_ARGS_MAX + 3];
    size_t word_count;
    struct {
        const char *name;
        size_t length;
        const char *inline_value; /* after '=' */
    } options[32];
    size_t option_count;
};

__attribute__((format(printf, 2, 3))) static bool wrong(char *message, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, PARSE_MESSAGE_MAX, format, args);
    va_end(args);
    return false;
}

static const struct tree_option *find_option(const struct tree_option *table, size_t count, const char *name, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].name) == length && strncmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}

/* Does any command take this option with a value? Needed to tell "--tp 3 DIR" from "--force DIR" before the command is known. */
static const struct tree_option *find_anywhere(const char *name, size_t length)
{
    const struct tree_option *option = find_option(tree_globals, tree_global_count, name, length);
    for (size_t i = 0; !option && i < tree_command_count; i++)
        option = find_option(tree_commands[i].options, tree_commands[i].option_count, name, length);
    return option;
}

static bool same(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && strncmp(name, text, length) == 0;
}

/* An option of any command, or with a command of that one only. */
static const struct tree_later *find_later_option(const char *command, const char *name, size_t length)
{
    for (size_t i = 0; i < tree_later_count; i++)
        if (tree_later[i].option && same(tree_later[i].option, name, length) && (!command || strcmp(tree_later[i].command, command) == 0))
            return &tree_later[i];
    return NULL;
}

/* Do these words begin with this command's one or two? */
static bool is_command(const struct given *given, const char *name)
{
    size_t first = strcspn(name, " ");
    return given->word_count > 0 && same(given->words[0], name, first) &&
           (!name[first] || (given->word_count > 1 && strcmp(given->words[1], name + first + 1) == 0));
}

static const struct tree_later *find_later_command(const struct given *given)
{
    for (size_t i = 0; i < tree_later_count; i++)
        if (!tree_later[i].option && is_command(given, tree_later[i].command))
            return &tree_later[i];
    return NULL;
}

static const struct tree_command *find_command(const struct given *given, size_t *ret_words)
{
    for (size_t i = 0; i < tree_command_count; i++) {
        if (!is_command(given, tree_commands[i].name))
            continue;
        *ret_words = strchr(tree_commands[i].name, ' ') ? 2 : 1;
        return &tree_commands[i];
    }
    return NULL;
}

/* Is it the first word of commands that have two? */
static bool is_group(const char *word)
{
    for (size_t i = 0; i < tree_command_count; i++)
        if (strchr(tree_commands[i].name, ' ') && same(word, tree_commands[i].name, strcspn(tree_commands[i].name, " ")))
            return true;
    return false;
}

/* "list, show or add" */
static void second_words(const char *first, char *text, size_t size)
{
    size_t last = 0, length = strlen(first), at = 0;
    for (size_t i = 0; i < tree_command_count; i++)
        if (strncmp(tree_commands[i].name, first, length) == 0 && tree_commands[i].name[length] == ' ')
            last = i;
    for (size_t i = 0; i <= last && at < size; i++) {
        const char *name = tree_commands[i].name;
        if (strncmp(name, first, length) == 0 && name[length] == ' ')
            at += (size_t)snprintf(text + at, size - at, "%s%s", !at ? "" : i == last ? " or " : ", ", name + length + 1);
    }
}

static bool check_choice(const char *name, const char *const *choices, const char *text, char *message)
{
    char list[128] = "";
    for (size_t i = 0; choices[i]; i++) {
        if (strcmp(choices[i], text) == 0)
            return true;
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? " or " : "", choices[i]);
    }
    return wrong(message, "%s: \"%s\" is not %s", name, text, list);
}

/* What becomes a param is text in JSON. */
static bool is_utf8(const char *text)
{
    json_t *probe = json_string(text);
    json_decref(probe);
    return probe != NULL;
}

static bool check_value(const struct tree_option *option, const char *text, char *message)
{
    long long value;
    if (option->type == TREE_INT && !number_parse(text, option->low, option->high, &value))
        return wrong(message, "%s: \"%s\" is no whole number from %lld to %lld", option->name, text, option->low, option->high);
    if (option->type == TREE_SIZE && (!number_parse_size(text, &value) || value < option->low))
        return wrong(message, "%s: \"%s\" is no size; 4G, 512M or a count of bytes is right", option->name, text);
    if (option->type != TREE_FLAG && !*text)
        return wrong(message, "%s: the value is empty", option->name);
    if (option->param && !is_utf8(text))
        return wrong(message, "%s: the value is no UTF-8, and fp9d takes nothing else", option->name);
    return !option->choices || check_choice(option->name, option->choices, text, message);
}

static bool sort_words(int argc, char **argv, struct given *given, struct parse_args *args, char *message)
{
    bool only_words = false;
    for (int i = 1; i < argc; i++) {
        const char *text = argv[i];
        if (only_words || text[0] != '-' || !text[1]) {
            if (given->word_count == sizeof given->words / sizeof given->words[0])
                return wrong(message, "too many arguments: \"%s\"", text);
            given->words[given->word_count++] = text;
            continue;
        }
        if (strcmp(text, "--") == 0) {
            only_words = true;
            continue;
        }
        const char *equals = strchr(text, '=');
        size_t length = equals ? (size_t)(equals - text) : strlen(text);
        if (strcmp(text, "-h") == 0)
            text = "--help", length = strlen(text);
        const struct tree_option *option = find_anywhere(text, length);
        if (!option && !find_later_option(NULL, text, length))
            return wrong(message, "no option %.*s", (int)length, text);
        if (option && option->type == TREE_FLAG && equals)
            return wrong(message, "%s takes no value", option->name);
        const char *value = "";
        if (option && option->type != TREE_FLAG) {
            if (!equals && i + 1 == argc)
                return wrong(message, "%s needs a value: %s", option->name, option->value);
            value = equals ? equals + 1 : argv[++i];
        }
        if (same("--json", text, length))
            args->json = true;
        else if (same("--help", text, length))
            args->help = true;
        else if (same("--version", text, length))
            args->version = true;
        else if (same("--socket", text, length) && !*value)
            return wrong(message, "--socket: the value is empty");
        else if (same("--socket", text, length))
            args->socket = value;
        else if (given->option_count == sizeof given->options / sizeof given->options[0])
            return wrong(message, "too many options");
        else {
            given->options[given->option_count].name = text;
            given->options[given->option_count].length = length;
            given->options[given->option_count++].inline_value = value;
        }
    }
    return true;
}

/* Options that go together, or not at all. */
static bool check_company(const struct parse_args *args, char *message)
{
    const struct tree_command *command = args->command;
    for (size_t i = 0; i < command->option_count; i++) {
        const struct tree_option *option = &command->options[i];
        if (!args->options[i])
            continue;
        if (option->needs && !parse_option(args, option->needs))
            return wrong(message, "%s: %s goes only with %s", command->name, option->name, option->needs);
        if (option->excludes && parse_option(args, option->excludes))
            return wrong(message, "%s: %s and %s: one of them at a time", command->name, option->excludes, option->name);
    }
    return true;
}

static bool take_options(const struct given *given, struct parse_args *args, char *message)
{
    const struct tree_command *command = args->command;
    bool any = false;
    for (size_t i = 0; i < given->option_count; i++) {
        const char *name = given->options[i].name;
        size_t length = given->options[i].length;
        const struct tree_option *option = find_option(command->options, command->option_count, name, length);
        const struct tree_later *later = option ? NULL : find_later_option(command->name, name, length);
        if (later) {
            args->later = later;
            continue;
        }
        if (!option)
            return wrong(message, "%s has no option %.*s", command->name, (int)length, name);
        if (!check_value(option, given->options[i].inline_value, message))
            return false;
        args->options[option - command->options] = given->options[i].inline_value;
        any = true;
    }
    for (size_t i = 0; i < command->option_count && !args->help; i++)
        if (command->options[i].required && !args->options[i])
            return wrong(message, "%s needs %s %s", command->name, command->options[i].name, command->options[i].value);
    if (command->needs_option && !any && !args->help)
        return wrong(message, "%s needs at least one of its options", command->name);
    return args->help || check_company(args, message);
}

static bool take_args(const struct given *given, size_t used, struct parse_args *args, char *message)
{
    const struct tree_command *command = args->command;
    for (size_t i = 0; i < TREE_ARGS_MAX && command->args[i].name; i++, used++) {
        const struct tree_arg *arg = &command->args[i];
        long long value;
        if (used == given->word_count)
            return args->help || arg->optional ? true : wrong(message, "%s needs %s", command->name, arg->name);
        if (!*given->words[used])
            return wrong(message, "%s: %s is empty", command->name, arg->name);
        if (arg->param && !is_utf8(given->words[used]))
            return wrong(message, "%s: %s is no UTF-8, and fp9d takes nothing else", command->name, arg->name);
        if (arg->type == TREE_INT && !number_parse(given->words[used], arg->low, arg->high, &value))
            return wrong(message, "%s: \"%s\" is no whole number from %lld up", command->name, given->words[used], arg->low);
        if (arg->choices && !args->help && !check_choice(arg->name, arg->choices, given->words[used], message))
            return false;
        args->args[i] = given->words[used];
    }
    if (used < given->word_count)
        return wrong(message, "%s: one argument too many: \"%s\"", command->name, given->words[used]);
    return true;
}

bool parse_line(int argc, char **argv, struct parse_args *ret_args, char ret_message[PARSE_MESSAGE_MAX])
{
    struct given given = {0};
    *ret_args = (struct parse_args){0};
    if (!sort_words(argc, argv, &given, ret_args, ret_message))
        return false;
    if (given.word_count == 0) {
        if (ret_args->help || ret_args->version)
            return true;
        return wrong(ret_message, "a command is missing");
    }
    size_t used = 0;
    ret_args->command = find_command(&given, &used);
    ret_args->later = ret_args->command ? NULL : find_later_command(&given);
    if (ret_args->later)
        return true;
    if (!ret_args->command && is_group(given.words[0])) {
        char words[PARSE_MESSAGE_MAX / 2] = "";
        ret_args->group = given.words[0];
        second_words(given.words[0], words, sizeof words);
        return ret_args->help || wrong(ret_message, "%s needs %s after it", given.words[0], words);
    }
    if (!ret_args->command)
        return wrong(ret_message, "no command \"%s%s%s\"", given.words[0], given.word_count > 1 ? " " : "",
                     given.word_count > 1 ? given.words[1] : "");
    return take_options(&given, ret_args, ret_message) && take_args(&given, used, ret_args, ret_message);
}

const char *parse_option(const struct parse_args *args, const char *name)
{
    const struct tree_command *command = args->command;
    const struct tree_option *option = find_option(command->options, command->option_count, name, strlen(name));
    return option ? args->options[option - command->options] : NULL;
}

long long parse_option_int(const struct parse_args *args, const char *name, long long otherwise)
{
    const char *text = parse_option(args, name);
    long long value;
    return text && number_parse(text, 0, __LONG_LONG_MAX__, &value) ? value : otherwise;
}

static json_t *value_of(enum tree_type type, const char *text)
{
    long long value = 0;
    switch (type) {
    case TREE_FLAG: return json_true();
    case TREE_TEXT: return json_string(text);
    case TREE_INT: return number_parse(text, 0, __LONG_LONG_MAX__, &value) ? json_integer(value) : NULL;
    case TREE_SIZE: return number_parse_size(text, &value) ? json_integer(value) : NULL;
    case TREE_PATH: return path_json(text);
    }
    return NULL;
}

json_t *parse_params(const struct parse_args *args)
{
    const struct tree_command *command = args->command;
    json_t *params = json_object();
    bool good = params != NULL;
    for (size_t i = 0; good && i < TREE_ARGS_MAX && command->args[i].name; i++)
        if (command->args[i].param && args->args[i])
            good = json_object_set_new(params, command->args[i].param, value_of(command->args[i].type, args->args[i])) == 0;
    for (size_t i = 0; good && i < command->option_count; i++)
        if (command->options[i].param && args->options[i])
            good = json_object_set_new(params, command->options[i].param, value_of(command->options[i].type, args->options[i])) == 0;
    if (!good) {
        json_decref(params);
        return NULL;
    }
    return params;
}
