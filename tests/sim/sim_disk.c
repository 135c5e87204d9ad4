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

static void row_add(struct sim_table *table, const struct sim_op *row)
{
    if (table->n == table->cap) {
        table->cap = table->cap ? table->cap * 2 : 16;
        table->rows = realloc(table->rows, table->cap * sizeof(*table->rows));
        if (!table->rows)
            abort();
    }
    table->rows[table->n] = *row;
    table->rows[table->n++].bytes = copied(row->bytes, row->n_bytes);
}

static void row_remove(struct sim_table *table, size_t at)
{
    free(table->rows[at].bytes);
    table->rows[at] = table->rows[--table->n];
}

typedef bool (*same_fn)(const struct sim_op *row, const struct sim_op *op);

static void rows_remove(struct sim_table *table, const struct sim_op *op, same_fn same)
{
    for (size_t i = 0; i < table->n;) {
        if (same(&table->rows[i], op))
            row_remove(table, i);
        else
            i++;
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

static bool chunk_between(const struct sim_op *row, const struct sim_op *op)
{
    return row->a == op->a && row->b >= op->b && row->b <= op->c;
}

// The union with every range that it overlaps or touches.
static void add_range(struct sim_table *table, const struct sim_op *op)
{
    uint64_t lo = op->c, hi = op->c + op->d;
    for (size_t i = 0; i < table->n;) {
        const struct sim_op *row = &table->rows[i];
        bool touches = row->a == op->a && row->b == op->b && row->c <= hi && row->c + row->d >= lo;
        if (!touches) {
            i++;
            continue;
        }
        lo = row->c < lo ? row->c : lo;
        hi = row->c + row->d > hi ? row->c + row->d : hi;
        row_remove(table, i);
        i = 0; // it may touch others now
    }
    row_add(table, &(struct sim_op){.kind = SIM_OP_RANGE, .a = op->a, .b = op->b, .c = lo, .d = hi - lo});
}

static void clip_ranges(struct sim_table *table, uint64_t session, uint64_t length)
{
    for (size_t i = 0; i < table->n;) {
        struct sim_op *row = &table->rows[i];
        if (row->a == session && row->c >= length) {
            row_remove(table, i);
            continue;
        }
        if (row->a == session && row->c + row->d > length)
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
        for (size_t i = 0; i < tables[SIM_SESSIONS].n; i++) {
            struct sim_op *row = &tables[SIM_SESSIONS].rows[i];
            if (row->a == op->a) {
                row->b = op->b;
                row->c = op->c;
            }
        }
        break;
    case SIM_OP_SESSION_DROP:
        rows_remove(&tables[SIM_SESSIONS], op, same_session);
        rows_remove(&tables[SIM_MEMBERS], op, same_session);
        rows_remove(&tables[SIM_RANGES], op, same_session);
        break;
    case SIM_OP_MEMBER:
        replace(&tables[SIM_MEMBERS], op, same_member);
        break;
    case SIM_OP_CHUNK:
        replace(&tables[SIM_CHUNKS], op, same_chunk);
        break;
    case SIM_OP_CHUNK_LOST:
        for (size_t i = 0; i < tables[SIM_CHUNKS].n; i++) {
            struct sim_op *row = &tables[SIM_CHUNKS].rows[i];
            if (same_chunk(row, op) && row->c == op->c)
                row->d = true;
        }
        break;
    case SIM_OP_CHUNK_DROP:
        rows_remove(&tables[SIM_CHUNKS], op, chunk_between);
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
    int n = a->kind == SIM_OP_RANGE ? 3 : a->kind == SIM_OP_CHUNK ? 2 : a->kind == SIM_OP_WORKER ? 0 : 1;
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
