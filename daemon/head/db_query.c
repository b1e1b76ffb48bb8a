#include "daemon/head/db_query.h"

#include <stdio.h>

struct db_query db_query_begin(struct db *db, const char *sql, const char *what)
{
    struct db_query query = {.db = db, .what = what};
    query.bad = sqlite3_prepare_v2(db->handle, sql, -1, &query.statement, NULL) != SQLITE_OK;
    return query;
}

void db_query_text(struct db_query *query, const char *text)
{
    query->bad = query->bad || sqlite3_bind_text(query->statement, ++query->bound, text, -1, SQLITE_TRANSIENT) != SQLITE_OK;
}

void db_query_int(struct db_query *query, long long value)
{
    query->bad = query->bad || sqlite3_bind_int64(query->statement, ++query->bound, value) != SQLITE_OK;
}

void db_query_real(struct db_query *query, double value)
{
    query->bad = query->bad || sqlite3_bind_double(query->statement, ++query->bound, value) != SQLITE_OK;
}

void db_query_hex(struct db_query *query, const uint8_t digest[DIGEST_SIZE])
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(digest, hex);
    db_query_text(query, hex);
}

/* True while there is a row. */
bool db_query_step(struct db_query *query)
{
    if (query->bad)
        return false;
    int step = sqlite3_step(query->statement);
    query->bad = step != SQLITE_ROW && step != SQLITE_DONE;
    return step == SQLITE_ROW;
}

int db_query_end(struct db_query *query, struct err *err)
{
    int r = query->bad ? db_err(query->db, query->what, err) : 0;
    sqlite3_finalize(query->statement);
    query->statement = NULL;
    return r;
}

/* A statement without rows, again with other values. */
bool db_query_run(struct db_query *query)
{
    db_query_step(query);
    if (!query->bad)
        sqlite3_reset(query->statement);
    query->bound = 0;
    return !query->bad;
}

void db_query_column(const struct db_query *query, int index, char *to, size_t size)
{
    const unsigned char *text = sqlite3_column_text(query->statement, index);
    snprintf(to, size, "%s", text ? (const char *)text : "");
}

bool db_query_column_hex(const struct db_query *query, int index, uint8_t ret_digest[DIGEST_SIZE])
{
    char text[DIGEST_HEX_SIZE + 1];
    db_query_column(query, index, text, sizeof text);
    return digest_parse(text, ret_digest);
}
