// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_disk.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void *copied(const void *bytes, size_t n)
{
    if (!bytes)
        return NULL;
    void *copy = malloc(n ? n : 1);
    if (!copy)
        abort();
    memcpy(copy, bytes, n);
    return copy;
}

// Rows of sessions are kept in order of these, so that a disk with a million rows is one, too.
static bool is_keyed(enum sim_op_kind kind)
{
    return kind != SIM_OP_META && kind != SIM_OP_WORKER;
}

// Index of the first row of a session, or of one after it.
static size_t rows_from(const struct sim_table *table, uint64_t session)
{
    size_t lo = 0, hi = table->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (table->rows[mid].a < session)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static size_t rows_to(const struct sim_table *table, uint64_t session)
{
    return session == UINT64_MAX ? table->n : rows_from(table, session + 1);
}

static void row_add(struct sim_table *table, const struct sim_op *row)
{
    if (table->n == table->cap) {
        table->cap = table->cap ? table->cap * 2 : 16;
        table->rows = realloc(table->rows, table->cap * sizeof(*table->rows));
        if (!table->rows)
            abort();
    }
    size_t at = is_keyed(row->kind) ? rows_to(table, row->a) : table->n;
    memmove(&table->rows[at + 1], &table->rows[at], (table->n++ - at) * sizeof(*table->rows));
    table->rows[at] = *row;
    table->rows[at].bytes = copied(row->bytes, row->n_bytes);
}

static void row_remove(struct sim_table *table, size_t at)
{
    free(table->rows[at].bytes);
    memmove(&table->rows[at], &table->rows[at + 1], (--table->n - at) * sizeof(*table->rows));
}

typedef bool (*same_fn)(const struct sim_op *row, const struct sim_op *op);

static void rows_remove(struct sim_table *table, const struct sim_op *op, same_fn same)
{
    bool all =
        !is_keyed(op->kind) || (op->kind == SIM_OP_SESSION && op->name[0]); // names, too, are looked at
    size_t i = all ? 0 : rows_from(table, op->a), end = all ? table->n : rows_to(table, op->a);
    while (i < end) {
        if (same(&table->rows[i], op)) {
            row_remove(table, i);
            end--;
        } else {
            i++;
        }
    }
}

static bool same_name(const struct sim_op *row, const struct sim_op *op)
{
    return !strcmp(row->name, op->name);
}

static bool same_session(const struct sim_op *row, const struct sim_op *op)
{
    return row->a == op->a;
}

static bool same_session_or_name(const struct sim_op *row, const struct sim_op *op) // names are unique
{
    return row->a == op->a || (op->name[0] && !strcmp(row->name, op->name));
}

static bool same_member(const struct sim_op *row, const struct sim_op *op)
{
    return row->a == op->a && !strcmp(row->name, op->name);
}

static bool same_chunk(const struct sim_op *row, const struct sim_op *op)
{
    return row->a == op->a && row->b == op->b;
}

static bool same_follower(const struct sim_op *row, const struct sim_op *op)
{
    return same_chunk(row, op) && !strcmp(row->name, op->name);
}

static bool chunk_between(const struct sim_op *row, const struct sim_op *op)
{
    return row->a == op->a && row->b >= op->b && row->b <= op->c;
}

// Another one serves in the place of a holder that did; a follower goes.
static void lose_copy(struct sim_table *chunks, struct sim_table *followers, const struct sim_op *op)
{
    struct sim_op *chunk = NULL, *first = NULL, gone = *op;
    for (size_t i = rows_from(chunks, op->a); i < rows_to(chunks, op->a); i++)
        if (same_chunk(&chunks->rows[i], op) && chunks->rows[i].c == op->c)
            chunk = &chunks->rows[i];
    for (size_t i = rows_from(followers, op->a); i < rows_to(followers, op->a); i++)
        if (same_chunk(&followers->rows[i], op) &&
            (!first || strcmp(followers->rows[i].name, first->name) < 0))
            first = &followers->rows[i];
    if (!chunk || !first)
        return;
    if (!strcmp(chunk->name, op->name)) {
        memcpy(chunk->name, first->name, sizeof chunk->name);
        memcpy(gone.name, first->name, sizeof gone.name);
    }
    rows_remove(followers, &gone, same_follower);
}

// The union with every range that it overlaps or touches.
static void add_range(struct sim_table *table, const struct sim_op *op)
{
    uint64_t lo = op->c, hi = op->c + op->d;
    for (size_t i = rows_from(table, op->a); i < table->n && table->rows[i].a == op->a;) {
        const struct sim_op *row = &table->rows[i];
        bool touches = row->b == op->b && row->c <= hi && row->c + row->d >= lo;
        if (!touches) {
            i++;
            continue;
        }
        lo = row->c < lo ? row->c : lo;
        hi = row->c + row->d > hi ? row->c + row->d : hi;
        row_remove(table, i);
        i = rows_from(table, op->a); // it may touch others now
    }
    row_add(table, &(struct sim_op){.kind = SIM_OP_RANGE, .a = op->a, .b = op->b, .c = lo, .d = hi - lo});
}

static void clip_ranges(struct sim_table *table, uint64_t session, uint64_t length)
{
    for (size_t i = rows_from(table, session); i < table->n && table->rows[i].a == session;) {
        struct sim_op *row = &table->rows[i];
        if (row->c >= length) {
            row_remove(table, i);
            continue;
        }
        if (row->c + row->d > length)
            row->d = length - row->c;
        i++;
    }
}

static void replace(struct sim_table *table, const struct sim_op *op, same_fn same)
{
    rows_remove(table, op, same);
    row_add(table, op);
}

void sim_tables_apply(struct sim_tables *t, const struct sim_op *op)
{
    struct sim_table *tables = t->tables;
    switch (op->kind) {
    case SIM_OP_META:
        replace(&tables[SIM_META], op, same_name);
        break;
    case SIM_OP_WORKER:
        replace(&tables[SIM_WORKERS], op, same_name);
        break;
    case SIM_OP_SESSION:
        replace(&tables[SIM_SESSIONS], op, same_session_or_name);
        break;
    case SIM_OP_NUMBERS:
        for (size_t i = rows_from(&tables[SIM_SESSIONS], op->a); i < rows_to(&tables[SIM_SESSIONS], op->a);
             i++) {
            tables[SIM_SESSIONS].rows[i].b = op->b;
            tables[SIM_SESSIONS].rows[i].c = op->c;
        }
        break;
    case SIM_OP_SESSION_DROP:
        rows_remove(&tables[SIM_SESSIONS], op, same_session);
        rows_remove(&tables[SIM_MEMBERS], op, same_session);
        rows_remove(&tables[SIM_RANGES], op, same_session);
        rows_remove(&tables[SIM_KEYS], op, same_session);
        rows_remove(&tables[SIM_CUTS], op, same_session);
        rows_remove(&tables[SIM_FLOORS], op, same_session);
        break;
    case SIM_OP_KEY:
        replace(&tables[SIM_KEYS], op, same_session);
        break;
    case SIM_OP_CUT:
        replace(&tables[SIM_CUTS], op, same_session);
        break;
    case SIM_OP_FLOOR:
        replace(&tables[SIM_FLOORS], op, same_session);
        break;
    case SIM_OP_MEMBER:
        replace(&tables[SIM_MEMBERS], op, same_member);
        break;
    case SIM_OP_MEMBER_DROP:
        rows_remove(&tables[SIM_MEMBERS], op, same_member);
        break;
    case SIM_OP_DRAIN:
        replace(&tables[SIM_DRAINING], op, same_name);
        break;
    case SIM_OP_RESUME:
        rows_remove(&tables[SIM_DRAINING], op, same_name);
        break;
    case SIM_OP_CHUNK:
        replace(&tables[SIM_CHUNKS], op, same_chunk);
        rows_remove(&tables[SIM_FOLLOWERS], op, same_chunk);
        break;
    case SIM_OP_FOLLOWER:
        replace(&tables[SIM_FOLLOWERS], op, same_follower);
        break;
    case SIM_OP_COPY_LOST:
        lose_copy(&tables[SIM_CHUNKS], &tables[SIM_FOLLOWERS], op);
        break;
    case SIM_OP_CHUNK_LOST:
        for (size_t i = rows_from(&tables[SIM_CHUNKS], op->a); i < rows_to(&tables[SIM_CHUNKS], op->a); i++) {
            struct sim_op *row = &tables[SIM_CHUNKS].rows[i];
            if (same_chunk(row, op) && row->c == op->c)
                row->d = true;
        }
        break;
    case SIM_OP_CHUNK_DROP:
        rows_remove(&tables[SIM_CHUNKS], op, chunk_between);
        rows_remove(&tables[SIM_FOLLOWERS], op, chunk_between);
        break;
    case SIM_OP_RANGE:
        add_range(&tables[SIM_RANGES], op);
        break;
    case SIM_OP_CLIP:
        clip_ranges(&tables[SIM_RANGES], op->a, op->b);
        break;
    }
}

// ---- reading --------------------------------------------------------------------------------------------

static int by_numbers(const void *x, const void *y)
{
    const struct sim_op *a = x, *b = y;
    const uint64_t p[] = {a->a, a->b, a->c}, q[] = {b->a, b->b, b->c};
    int n = a->kind == SIM_OP_RANGE                                 ? 3
            : a->kind == SIM_OP_CHUNK || a->kind == SIM_OP_FOLLOWER ? 2
            : a->kind == SIM_OP_WORKER                              ? 0
                                                                    : 1;
    for (int i = 0; i < n; i++)
        if (p[i] != q[i])
            return p[i] < q[i] ? -1 : 1;
    return strcmp(a->name, b->name);
}

static bool read_row(const struct coordinator_store_reader *r, const struct sim_op *row)
{
    switch (row->kind) {
    case SIM_OP_WORKER:
        return r->worker(r->arg, row->name, row->a);
    case SIM_OP_SESSION:
        return r->session(r->arg, row->a, row->name, row->bytes, row->n_bytes, row->b, row->c);
    case SIM_OP_MEMBER:
        return r->member(r->arg, row->a, row->name);
    case SIM_OP_KEY:
        return r->key(r->arg, row->a, row->b);
    case SIM_OP_CUT:
        return r->cut(r->arg, row->a, row->b);
    case SIM_OP_FLOOR:
        return r->floor(r->arg, row->a, row->b);
    case SIM_OP_DRAIN:
        return r->draining(r->arg, row->name, row->bytes, row->n_bytes);
    case SIM_OP_FOLLOWER:
        return r->follower(r->arg, row->a, (uint32_t)row->b, row->name);
    case SIM_OP_CHUNK:
        return r->chunk(r->arg, row->a, (uint32_t)row->b, row->c, row->d != 0, row->name);
    default:
        return r->range(r->arg, row->a, (uint32_t)row->b, row->c, row->d);
    }
}

enum common_code sim_tables_read(struct sim_tables *t, const struct coordinator_store_reader *r,
                                 struct common_error *err)
{
    for (int k = SIM_WORKERS; k < SIM_TABLES; k++) {
        struct sim_table *table = &t->tables[k];
        if (table->n)
            qsort(table->rows, table->n, sizeof(*table->rows), by_numbers);
        for (size_t i = 0; i < table->n; i++)
            if (!read_row(r, &table->rows[i]))
                return err && err->code != COMMON_OK ? err->code : COMMON_INTERNAL;
    }
    return COMMON_OK;
}

uint64_t sim_tables_meta(const struct sim_tables *t, const char *key, uint64_t absent)
{
    const struct sim_table *table = &t->tables[SIM_META];
    for (size_t i = 0; i < table->n; i++)
        if (!strcmp(table->rows[i].name, key))
            return table->rows[i].a;
    return absent;
}

void sim_tables_copy(const struct sim_tables *from, struct sim_tables *to)
{
    sim_tables_clear(to);
    for (int k = 0; k < SIM_TABLES; k++)
        for (size_t i = 0; i < from->tables[k].n; i++)
            row_add(&to->tables[k], &from->tables[k].rows[i]);
}

void sim_tables_clear(struct sim_tables *t)
{
    for (int k = 0; k < SIM_TABLES; k++) {
        struct sim_table *table = &t->tables[k];
        while (table->n)
            row_remove(table, table->n - 1);
        free(table->rows);
        *table = (struct sim_table){0};
    }
}
