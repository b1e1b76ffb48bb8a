#include <errno.h>
#include <string.h>
#include <yajl/yajl_parse.h>

#include "proto/base/safetensors_table.h"
#include "proto/base/size.h"

/* Where in the document the parser is. */
enum state {
    STATE_START,    /* before the outermost { */
    STATE_TOP,      /* in it: a tensor's name or __metadata__ comes */
    STATE_TENSOR,   /* after a tensor's name: its { comes */
    STATE_FIELD,    /* in a tensor: a field's name comes */
    STATE_DTYPE,    /* the value of dtype comes */
    STATE_SHAPE,    /* the [ of shape comes */
    STATE_SIDES,    /* in shape */
    STATE_OFFSETS,  /* the [ of data_offsets comes */
    STATE_OFFSET,   /* in data_offsets */
    STATE_METADATA, /* the { of __metadata__ comes */
    STATE_META_KEY,
    STATE_META_VALUE,
    STATE_END,
};

struct safetensors_parser {
    const char *where;
    struct safetensors_table *table;
    yajl_handle yajl;
    enum state state;
    struct safetensors_tensor tensor; /* the one being read */
    char name[SAFETENSORS_NAME_MAX + 1];
    bool has_dtype, has_shape, has_offsets, has_metadata;
    uint32_t offsets; /* read so far */
    struct err *err;  /* of the running call */
    int code;         /* of the failure that a callback met */
};

static int fail(struct safetensors_parser *p, const char *what)
{
    switch (p->state) {
    case STATE_START:
    case STATE_TOP:
    case STATE_END: p->code = err_set(p->err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: header: %s", p->where, what); break;
    case STATE_METADATA:
    case STATE_META_KEY:
    case STATE_META_VALUE: p->code = err_set(p->err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: __metadata__: %s", p->where, what); break;
    default:
        p->code = err_set(p->err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: tensor %s: %s", p->where, p->name, what);
        err_value_str(p->err, "tensor", p->name);
        break;
    }
    err_value_str(p->err, "file", p->where);
    return 0;
}

/* A value of a kind that the state has no use for. */
static int unexpected(struct safetensors_parser *p)
{
    switch (p->state) {
    case STATE_START: return fail(p, "must be a JSON object");
    case STATE_TENSOR: return fail(p, "must be an object with dtype, shape and data_offsets");
    case STATE_DTYPE: return fail(p, "dtype must be a string");
    case STATE_SHAPE: return fail(p, "shape must be a list of whole numbers");
    case STATE_SIDES: return fail(p, "shape must hold whole numbers from 0 to 2^64-1 only");
    case STATE_OFFSETS:
    case STATE_OFFSET: return fail(p, "data_offsets must be two whole numbers [begin, end]");
    case STATE_METADATA: return fail(p, "must be an object of strings");
    case STATE_META_VALUE: return fail(p, "values must be strings");
    case STATE_TOP:
    case STATE_FIELD:
    case STATE_META_KEY:
    case STATE_END: break;
    }
    return fail(p, "malformed");
}

static int on_null(void *context)
{
    return unexpected(context);
}

static int on_boolean(void *context, int value)
{
    (void)value;
    return unexpected(context);
}

static int on_number(void *context, const char *text, size_t length)
{
    struct safetensors_parser *p = context;
    char digits[24];
    uint64_t value;
    if (p->state != STATE_SIDES && p->state != STATE_OFFSET)
        return unexpected(p);
    if (length >= sizeof digits)
        return unexpected(p);
    memcpy(digits, text, length);
    digits[length] = '\0';
    if (!size_parse_u64(digits, 0, UINT64_MAX, &value))
        return unexpected(p);
    if (p->state == STATE_SIDES) {
        if (p->tensor.dims == SAFETENSORS_DIMS_MAX)
            return fail(p, "shape has more than 8 dimensions");
        p->tensor.shape[p->tensor.dims++] = value;
        return 1;
    }
    if (p->offsets == 2)
        return unexpected(p);
    *(p->offsets == 0 ? &p->tensor.begin : &p->tensor.end) = value;
    p->offsets++;
    return 1;
}

static int on_string(void *context, const unsigned char *text, size_t length)
{
    struct safetensors_parser *p = context;
    if (p->state == STATE_META_VALUE) {
        p->state = STATE_META_KEY;
        return 1;
    }
    if (p->state != STATE_DTYPE)
        return unexpected(p);
    if (length == 0 || length >= sizeof p->tensor.dtype_name || memchr(text, '\0', length))
        return fail(p, "dtype must be a name of 1 to 23 characters");
    memcpy(p->tensor.dtype_name, text, length);
    p->tensor.dtype_name[length] = '\0';
    p->tensor.dtype = safetensors_dtype_find(p->tensor.dtype_name);
    p->state = STATE_FIELD;
    return 1;
}

static int on_map_start(void *context)
{
    struct safetensors_parser *p = context;
    switch (p->state) {
    case STATE_START: p->state = STATE_TOP; return 1;
    case STATE_TENSOR: p->state = STATE_FIELD; return 1;
    case STATE_METADATA: p->state = STATE_META_KEY; return 1;
    default: return unexpected(p);
    }
}

static int begin_tensor(struct safetensors_parser *p, const unsigned char *name, size_t length)
{
    if (length == 0 || length > SAFETENSORS_NAME_MAX)
        return fail(p, "a tensor's name must have 1 to 512 bytes");
    for (size_t i = 0; i < length; i++)
        if (name[i] < 0x20 || name[i] == 0x7f)
            return fail(p, "a tensor's name has a control character in it");
    memcpy(p->name, name, length);
    p->name[length] = '\0';
    p->tensor = (struct safetensors_tensor){0};
    p->has_dtype = p->has_shape = p->has_offsets = false;
    p->state = STATE_TENSOR;
    return 1;
}

static bool is(const unsigned char *text, size_t length, const char *word)
{
    return length == strlen(word) && memcmp(text, word, length) == 0;
}

static int begin_field(struct safetensors_parser *p, bool *seen, enum state next)
{
    if (*seen)
        return fail(p, "a field is given twice");
    *seen = true;
    p->state = next;
    return 1;
}

static int on_map_key(void *context, const unsigned char *key, size_t length)
{
    struct safetensors_parser *p = context;
    if (p->state == STATE_META_KEY) {
        p->state = STATE_META_VALUE;
        return 1;
    }
    if (p->state == STATE_TOP) {
        if (!is(key, length, "__metadata__"))
            return begin_tensor(p, key, length);
        if (p->has_metadata)
            return fail(p, "__metadata__ is given twice");
        p->has_metadata = true;
        p->state = STATE_METADATA;
        return 1;
    }
    if (is(key, length, "dtype"))
        return begin_field(p, &p->has_dtype, STATE_DTYPE);
    if (is(key, length, "shape"))
        return begin_field(p, &p->has_shape, STATE_SHAPE);
    if (is(key, length, "data_offsets")) {
        p->offsets = 0;
        return begin_field(p, &p->has_offsets, STATE_OFFSETS);
    }
    return fail(p, "has a field other than dtype, shape and data_offsets");
}

static int add_tensor(struct safetensors_parser *p)
{
    struct safetensors_table *table = p->table;
    if (!p->has_dtype || !p->has_shape || !p->has_offsets)
        return fail(p, "must have dtype, shape and data_offsets");
    if (table->count == SAFETENSORS_TENSORS_MAX)
        return fail(p, "one tensor more than the limit of 1048576");
    if (table->count == table->capacity) {
        size_t capacity = table->capacity ? 2 * table->capacity : 64;
        struct safetensors_tensor *grown = reallocarray(table->tensors, capacity, sizeof *grown);
        if (!grown) {
            p->code = err_no_memory(p->err, p->where, capacity * sizeof *grown);
            return 0;
        }
        table->tensors = grown;
        table->capacity = capacity;
    }
    if (buf_append(&table->names, p->name, strlen(p->name) + 1, SIZE_MAX) < 0) {
        p->code = err_no_memory(p->err, p->where, table->names.length);
        return 0;
    }
    table->tensors[table->count++] = p->tensor;
    p->state = STATE_TOP;
    return 1;
}

static int on_map_end(void *context)
{
    struct safetensors_parser *p = context;
    if (p->state == STATE_FIELD)
        return add_tensor(p);
    /* yajl closes only what was opened: what is left is the document or __metadata__. */
    p->state = p->state == STATE_META_KEY ? STATE_TOP : STATE_END;
    return 1;
}

static int on_array_start(void *context)
{
    struct safetensors_parser *p = context;
    switch (p->state) {
    case STATE_SHAPE: p->state = STATE_SIDES; return 1;
    case STATE_OFFSETS: p->state = STATE_OFFSET; return 1;
    default: return unexpected(p);
    }
}

static int on_array_end(void *context)
{
    struct safetensors_parser *p = context;
    if (p->state == STATE_OFFSET && p->offsets != 2)
        return unexpected(p);
    p->state = STATE_FIELD;
    return 1;
}

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_boolean,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_start_map = on_map_start,
    .yajl_map_key = on_map_key,
    .yajl_end_map = on_map_end,
    .yajl_start_array = on_array_start,
    .yajl_end_array = on_array_end,
};

struct safetensors_parser *safetensors_parser_new(const char *where, struct safetensors_table *table)
{
    _cleanup_(safetensors_parser_freep) struct safetensors_parser *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->where = where;
    p->table = table;
    p->yajl = yajl_alloc(&callbacks, NULL, p);
    return p->yajl ? STEAL(p) : NULL;
}

void safetensors_parser_free(struct safetensors_parser *parser)
{
    if (!parser)
        return;
    if (parser->yajl)
        yajl_free(parser->yajl);
    free(parser);
}

static int result(struct safetensors_parser *p, yajl_status status, const void *piece, size_t length)
{
    if (status == yajl_status_ok)
        return 0;
    if (status == yajl_status_client_canceled)
        return p->code;
    unsigned char *why = yajl_get_error(p->yajl, 0, piece, length);
    char text[128];
    size_t n = 0;
    for (; why && why[n] && why[n] != '\n' && n < sizeof text - 1; n++)
        text[n] = (char)why[n];
    text[n] = '\0';
    fail(p, text);
    yajl_free_error(p->yajl, why);
    return p->code;
}

int safetensors_parser_feed(struct safetensors_parser *parser, const void *piece, size_t length, struct err *err)
{
    parser->err = err;
    return result(parser, yajl_parse(parser->yajl, piece, length), piece, length);
}

int safetensors_parser_finish(struct safetensors_parser *parser, struct err *err)
{
    parser->err = err;
    int r = result(parser, yajl_complete_parse(parser->yajl), NULL, 0);
    if (r < 0)
        return r;
    const char *name = (const char *)parser->table->names.data;
    for (size_t i = 0; i < parser->table->count; i++) {
        parser->table->tensors[i].name = name;
        name += strlen(name) + 1;
    }
    return 0;
}
