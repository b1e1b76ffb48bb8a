#include "proto/base/conf.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "proto/base/cleanup.h"
#include "proto/base/size.h"

#define CONF_SEEN_MAX 512
#define CONF_LINE_MAX 190 /* below inih's INI_MAX_LINE of 200 */

struct reading {
    const struct conf_table *table;
    void *settings;
    struct err *err;
    bool failed;
    struct {
        const struct conf_key *key;
        const void *target;
    } seen[CONF_SEEN_MAX]; /* to refuse a key given twice */
    size_t seen_count;
};

static int put_string(char **field, const char *value, struct err *err)
{
    char *copy = strdup(value);
    if (!copy)
        return err_no_memory(err, "configuration", strlen(value) + 1);
    free(*field);
    *field = copy;
    return 0;
}

static bool parse_bool(const char *text, bool *ret)
{
    static const char *const yes[] = {"yes", "true", "on", "1"}, *const no[] = {"no", "false", "off", "0"};
    for (size_t i = 0; i < ARRAY_LENGTH(yes); i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *ret = strcasecmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static int put_choice(const struct conf_key *key, char **field, const char *value, struct err *err)
{
    char list[256] = "";
    for (size_t i = 0; key->choices[i]; i++) {
        if (strcmp(key->choices[i], value) == 0)
            return put_string(field, value, err);
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", key->choices[i]);
    }
    return err_set(err, -EINVAL, ERR_BAD_REQUEST, "\"%s\" is not one of: %s", value, list);
}

static int put(const struct conf_key *key, void *target, const char *value, struct err *err)
{
    void *field = (char *)target + key->offset;
    switch (key->type) {
    case CONF_STRING: {
        size_t length = strlen(value);
        if (length < key->low || (key->high && length > key->high))
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%zu byte%s long, allowed are %" PRIu64 " to %" PRIu64, length,
                           size_plural(length), key->low, key->high);
        return put_string(field, value, err);
    }
    case CONF_CHOICE: return put_choice(key, field, value, err);
    case CONF_BOOL:
        if (!parse_bool(value, field))
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "\"%s\" is neither yes nor no", value);
        return 0;
    case CONF_U32: {
        uint64_t number;
        if (!size_parse_u64(value, key->low, key->high, &number))
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "\"%s\" is not a whole number from %" PRIu64 " to %" PRIu64, value, key->low,
                           key->high);
        *(uint32_t *)field = (uint32_t)number;
        return 0;
    }
    case CONF_SIZE:
        if (*value && !size_parse(value, field))
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "\"%s\" is not a size such as 512M or 8G", value);
        return 0;
    }
    return 0;
}

static const struct conf_key *find(const struct conf_key *keys, size_t count, const char *section, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if ((!section || strcmp(keys[i].section, section) == 0) && strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

/* [duck "kitchen"] -> "kitchen"; NULL when the section is not of that form. */
static char *quoted_name(const char *section, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(section, word, n) != 0 || section[n] != ' ')
        return NULL;
    const char *open = strchr(section + n, '"');
    const char *shut = open ? strchr(open + 1, '"') : NULL;
    if (!shut || shut == open + 1 || shut[1])
        return NULL;
    return strndup(open + 1, (size_t)(shut - open - 1));
}

static int take(struct reading *reading, const char *section, const char *name, const char *value)
{
    const struct conf_table *table = reading->table;
    void *target = reading->settings;
    const struct conf_key *key;
    _cleanup_(freep) char *quoted = table->named_section ? quoted_name(section, table->named_section) : NULL;
    if (quoted) {
        key = find(table->named_keys, table->named_count, NULL, name);
        target = table->named(reading->settings, quoted, reading->err);
        if (!target)
            return reading->err ? reading->err->code : -EINVAL;
    } else {
        key = find(table->keys, table->count, section, name);
    }
    if (!key)
        return err_set(reading->err, -EINVAL, ERR_BAD_REQUEST, "unknown key");
    for (size_t i = 0; i < reading->seen_count; i++)
        if (reading->seen[i].key == key && reading->seen[i].target == target)
            return err_set(reading->err, -EINVAL, ERR_BAD_REQUEST, "given twice");
    if (reading->seen_count == CONF_SEEN_MAX)
        return err_set(reading->err, -EINVAL, ERR_BAD_REQUEST, "more than %d keys", CONF_SEEN_MAX);
    reading->seen[reading->seen_count].key = key;
    reading->seen[reading->seen_count++].target = target;
    return put(key, target, value, reading->err);
}

static int handle(void *user, const char *section, const char *name, const char *value)
{
    struct reading *reading = user;
    if (reading->failed)
        return 0;
    if (take(reading, section, name, value ? value : "") < 0) {
        reading->failed = true;
        err_prefix(reading->err, "[%s] %s", section, name);
        return 0;
    }
    return 1;
}

/* inih cuts longer lines in two and would take the tail of a comment for a key. */
static int check_lines(FILE *file, const char *path, struct err *err)
{
    size_t length = 0;
    unsigned line = 1;
    for (int c; (c = getc(file)) != EOF;) {
        length = c == '\n' ? 0 : length + 1;
        line += c == '\n';
        if (length > CONF_LINE_MAX)
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s:%u: the line is longer than %d bytes", path, line, CONF_LINE_MAX);
        if (c == '\0')
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s:%u: a NUL byte, so this is no text file", path, line);
    }
    if (ferror(file)) /* some files of /proc, a bad disk: else it would pass for an empty one */
        return err_errno(err, "%s: cannot be read", path);
    rewind(file);
    return 0;
}

/* inih says nothing of a section without keys: a named one was meant to be something. */
static int check_sections(FILE *file, const struct conf_table *table, const char *path, struct err *err)
{
    char text[CONF_LINE_MAX + 2], open[CONF_LINE_MAX + 2] = "";
    unsigned line = 0, opened = 0;
    bool more = true;
    while (more) {
        more = fgets(text, sizeof text, file);
        line++;
        char *begin = more ? text + strspn(text, " \t\r\n") : text;
        if (more && (!*begin || *begin == ';' || *begin == '#'))
            continue;
        if (*open && (!more || *begin == '['))
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s:%u: [%s] has no keys: give what it needs, or leave it out", path, opened,
                           open);
        open[0] = '\0';
        char *end = more && *begin == '[' ? strchr(begin, ']') : NULL;
        if (!end)
            continue;
        *end = '\0';
        _cleanup_(freep) char *name = quoted_name(begin + 1, table->named_section);
        opened = line;
        if (name)
            snprintf(open, sizeof open, "%s", begin + 1);
    }
    rewind(file);
    return 0;
}

int conf_read(const char *path, const struct conf_table *table, void *settings, struct err *err)
{
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang the start */
    struct stat info;
    if (fd < 0 || fstat(fd, &info) < 0)
        return err_errno(err, "%s", path);
    if (!S_ISREG(info.st_mode))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s: is not a regular file", path);
    _cleanup_(fclosep) FILE *file = fdopen(fd, "r");
    if (!file)
        return err_errno(err, "%s", path);
    STEAL_FD(fd);
    int r = check_lines(file, path, err);
    if (r == 0 && table->named_section)
        r = check_sections(file, table, path, err);
    if (r < 0)
        return r;
    struct reading reading = {.table = table, .settings = settings, .err = err};
    int line = ini_parse_file(file, handle, &reading);
    if (reading.failed) {
        err_value_str(err, "file", path);
        return err_prefix(err, "%s:%d", path, line);
    }
    if (line > 0)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s:%d: neither a [section] nor key = value", path, line);
    if (line < 0)
        return err_set(err, -EIO, ERR_INTERNAL, "%s: cannot be read", path);
    return 0;
}
