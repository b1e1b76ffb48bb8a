/* One statement of sqlite: bind its values in order, step through its rows, end. The first failure sticks, and db_query_end tells it.
 * Private to db*.c. */
#ifndef FP9_HEAD_DB_QUERY_H
#define FP9_HEAD_DB_QUERY_H

#include "daemon/head/db_state.h"
#include "proto/base/digest.h"

struct db_query {
    struct db *db;
    sqlite3_stmt *statement;
    const char *what; /* for the error */
    bool bad;
    int bound;
};

struct db_query db_query_begin(struct db *db, const char *sql, const char *what);
void db_query_text(struct db_query *query, const char *text); /* NULL: NULL */
void db_query_int(struct db_query *query, long long value);
void db_query_real(struct db_query *query, double value);
void db_query_hex(struct db_query *query, const uint8_t digest[DIGEST_SIZE]);
/* True while there is a row. */
bool db_query_step(struct db_query *query);
/* A statement without rows, again with other values. */
bool db_query_run(struct db_query *query);
void db_query_column(const struct db_query *query, int index, char *to, size_t size); /* as text, "" for NULL */
bool db_query_column_hex(const struct db_query *query, int index, uint8_t ret_digest[DIGEST_SIZE]);
int db_query_end(struct db_query *query, struct err *err);

#endif
