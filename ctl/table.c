#include "ctl/table.h"

#include <stdio.h>
#include <string.h>

#define COLUMNS_MAX 16

static void format_bytes(double bytes, char *text)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024.0) {
        snprintf(text, TABLE_TEXT_MAX, "%.0f B", bytes);
        return;
    }
    size_t unit = 0;
    for (bytes /= 1024.0; bytes >= 1024.0 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        bytes /= 1024.0;
    snprintf(text, TABLE_TEXT_MAX, "%.*f %s", bytes < 100.0 ? 1 : 0, bytes, units[unit]);
}

/* What does not fit ends with "...", not within a character. */
static void format_text(const char *value, char *text)
{
    static const char mark[] = "...";
    size_t length = strlen(value), kept = TABLE_TEXT_MAX - sizeof mark;
    if (length < TABLE_TEXT_MAX) {
        memcpy(text, value, length + 1);
        return;
    }
    while (kept && ((unsigned char)value[kept] & 0xc0) == 0x80)
        kept--;
    memcpy(text, value, kept);
    memcpy(text + kept, mark, sizeof mark);
}

void table_format(const json_t *value, enum table_kind kind, char ret_text[TABLE_TEXT_MAX])
{
    double number = json_number_value(value);
    if (json_is_string(value)) {
        if (kind == TABLE_KEY)
            snprintf(ret_text, TABLE_TEXT_MAX, "%.12s", json_string_value(value));
        else
            format_text(json_string_value(value), ret_text);
        for (char *p = ret_text; *p; p++)
            if ((unsigned char)*p < 0x20 || *p == 0x7f)
                *p = '?';
        if (!*ret_text)
            snprintf(ret_text, TABLE_TEXT_MAX, "-");
    } else if (json_is_number(value) && kind == TABLE_BYTES) {
        format_bytes(number, ret_text);
    } else if (json_is_number(value) && kind == TABLE_SHARE) {
        snprintf(ret_text, TABLE_TEXT_MAX, "%.0f %%", number * 100.0);
    } else if (json_is_integer(value)) {
        snprintf(ret_text, TABLE_TEXT_MAX, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        snprintf(ret_text, TABLE_TEXT_MAX, "%.*f", number < 10.0 && number > -10.0 ? 3 : 1, number);
    } else if (json_is_boolean(value)) {
        snprintf(ret_text, TABLE_TEXT_MAX, "%s", json_is_true(value) ? "yes" : "no");
    } else {
        snprintf(ret_text, TABLE_TEXT_MAX, "-");
    }
}

/* Characters, not bytes; a wide character counts as one. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static const char *color_of(const char *state)
{
    static const char *const good[] = {"ready", "up", "done", "finished"}, *const bad[] = {"failed", "lost", "cancelled"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (strcmp(state, good[i]) == 0)
            return "\033[32m";
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (strcmp(state, bad[i]) == 0)
            return "\033[31m";
    return "\033[33m";
}

static void print_cell(const char *text, int width, const struct table_column *column, bool color, bool last)
{
    bool right = column->kind == TABLE_COUNT || column->kind == TABLE_BYTES || column->kind == TABLE_SHARE;
    int pad = width - width_of(text);
    if (right)
        printf("%*s", pad, "");
    if (color && column->kind == TABLE_STATE)
        printf("%s%s\033[0m", color_of(text), text);
    else
        fputs(text, stdout);
    if (!right && !last)
        printf("%*s", pad, "");
    fputs(last ? "\n" : "  ", stdout);
}

void table_print(const json_t *rows, const struct table_column *columns, size_t count, const char *empty, bool color)
{
    if (json_array_size(rows) == 0) {
        printf("%s\n", empty);
        return;
    }
    int widths[COLUMNS_MAX] = {0};
    char text[TABLE_TEXT_MAX];
    size_t i;
    json_t *row;
    for (size_t c = 0; c < count; c++) {
        widths[c] = width_of(columns[c].title);
        json_array_foreach((json_t *)rows, i, row)
        {
            table_format(json_object_get(row, columns[c].key), columns[c].kind, text);
            widths[c] = widths[c] > width_of(text) ? widths[c] : width_of(text);
        }
    }
    for (size_t c = 0; c < count; c++)
        print_cell(columns[c].title, widths[c], &columns[c], false, c + 1 == count);
    json_array_foreach((json_t *)rows, i, row)
    {
        for (size_t c = 0; c < count; c++) {
            table_format(json_object_get(row, columns[c].key), columns[c].kind, text);
            print_cell(text, widths[c], &columns[c], color, c + 1 == count);
        }
    }
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length > tail && strcmp(text + length - tail, end) == 0;
}

static enum table_kind kind_of(const char *key)
{
    bool bytes = ends_with(key, "_bytes") || ends_with(key, "_bytes_per_token") || strncmp(key, "bytes_", 6) == 0;
    return (bytes && strcmp(key, "bytes_per_param") != 0) || strcmp(key, "padding") == 0 ? TABLE_BYTES : TABLE_TEXT;
}

static void print_joined(const char *key, const json_t *array)
{
    size_t i;
    json_t *item;
    char text[TABLE_TEXT_MAX];
    printf("%s:%s", key, json_array_size(array) ? "" : " none");
    json_array_foreach((json_t *)array, i, item)
    {
        table_format(item, TABLE_TEXT, text);
        printf("%s%s", i ? ", " : " ", text);
    }
    putchar('\n');
}

/* A string as it is, however long. */
static void print_whole(const json_t *string)
{
    for (const char *p = json_string_value(string); *p; p++)
        putchar((unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p);
}

/* "error: NAME: message"; its values are for programs, and the sentence has them too. */
static void print_error(const char *key, const json_t *error)
{
    printf("%s: ", key);
    print_whole(json_object_get(error, "name"));
    fputs(": ", stdout);
    print_whole(json_object_get(error, "message"));
    putchar('\n');
}

static bool is_error(const json_t *value)
{
    return json_is_string(json_object_get(value, "name")) && json_is_string(json_object_get(value, "message"));
}

void table_print_object(const json_t *object)
{
    const char *key;
    json_t *value;
    char text[TABLE_TEXT_MAX];
    json_object_foreach((json_t *)object, key, value)
    {
        if (json_is_array(value) && !json_is_object(json_array_get(value, 0))) {
            print_joined(key, value);
        } else if (is_error(value)) {
            print_error(key, value);
        } else if (json_is_object(value)) {
            const char *inner;
            json_t *member;
            printf("%s:", key);
            json_object_foreach(value, inner, member)
            {
                table_format(member, kind_of(inner), text);
                printf(" %s %s", inner, text);
            }
            putchar('\n');
        } else if (json_is_string(value)) {
            printf("%s: ", key);
            print_whole(value);
            putchar('\n');
        } else if (!json_is_array(value)) {
            table_format(value, kind_of(key), text);
            printf("%s: %s\n", key, text);
        }
    }
}
