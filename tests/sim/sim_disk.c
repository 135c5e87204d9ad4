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

static bool has_session(enum sim_op_kind kind)
{
    return kind != SIM_OP_META && kind != SIM_OP_WORKER && kind != SIM_OP_WORKER_DROP &&
           kind != SIM_OP_DRAIN && kind != SIM_OP_RESUME && kind != SIM_OP_TENANT && kind != SIM_OP_TOKEN &&
           kind != SIM_OP_TOKEN_USED && kind != SIM_OP_TOKEN_DROP && kind != SIM_OP_QUOTA &&
           kind != SIM_OP_PREFIX;
}

// Doubles an array that is full.
static void *grown(void *array, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return array;
    *cap = *cap ? *cap * 2 : 4;
    void *more = realloc(array, *cap * size);
    if (!more)
        abort();
    return more;
}

// Index of the first session that is not below this one.
static size_t lower(const struct sim_table *table, uint64_t session)
{
    size_t lo = 0, hi = table->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (table->sessions[mid].session < session)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

// None: an empty one, which is not in the table.
static struct sim_rows *rows_of(const struct sim_table *table, uint64_t session)
{
    static struct sim_rows none;
    size_t at = lower(table, session);
    return at < table->n && table->sessions[at].session == session ? &table->sessions[at] : &none;
}

static struct sim_rows *rows_made(struct sim_table *table, uint64_t session)
{
    size_t at = lower(table, session);
    if (at < table->n && table->sessions[at].session == session)
        return &table->sessions[at];
    table->sessions = grown(table->sessions, table->n, &table->cap, sizeof(*table->sessions));
    memmove(&table->sessions[at + 1], &table->sessions[at], (table->n++ - at) * sizeof(*table->sessions));
    table->sessions[at] = (struct sim_rows){.session = session};
    return &table->sessions[at];
}

static void row_add(struct sim_table *table, const struct sim_op *row)
{
    struct sim_rows *of = rows_made(table, has_session(row->kind) ? row->a : 0);
    struct sim_op *added = malloc(sizeof(*added));
    if (!added)
        abort();
    *added = *row;
    added->bytes = copied(row->bytes, row->n_bytes);
    of->rows = grown(of->rows, of->n, &of->cap, sizeof(struct sim_op *));
    of->rows[of->n++] = added;
}

static void row_remove(struct sim_rows *of, size_t at)
{
    free(of->rows[at]->bytes);
    free(of->rows[at]);
    memmove(&of->rows[at], &of->rows[at + 1], (--of->n - at) * sizeof(struct sim_op *));
}

typedef bool (*same_fn)(const struct sim_op *row, const struct sim_op *op);

static void remove_of(struct sim_rows *of, const struct sim_op *op, same_fn same)
{
    for (size_t i = 0; i < of->n;)
        if (same(of->rows[i], op))
            row_remove(of, i);
        else
            i++;
}

static void rows_remove(struct sim_table *table, const struct sim_op *op, same_fn same)
{
    if (op->kind == SIM_OP_SESSION && op->name[0]) // names, too, are looked at
        for (size_t i = 0; i < table->n; i++)
            remove_of(&table->sessions[i], op, same);
    else
        remove_of(rows_of(table, has_session(op->kind) ? op->a : 0), op, same);
}

static bool same_name(const struct sim_op *row, const struct sim_op *op)
{
    return !strcmp(row->name, op->name);
}

static bool same_session(const struct sim_op *row, const struct sim_op *op)
{
    return row->a == op->a;
}

static bool same_session_or_name(const struct sim_op *row, const struct sim_op *op) // unique in a tenant
{
    return row->a == op->a || (op->name[0] && row->d == op->d && !strcmp(row->name, op->name));
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

static bool other_seal(const struct sim_op *row, const struct sim_op *op)
{
    return same_chunk(row, op) && row->c != op->c;
}

// The row of the chunk with this index and id.
static struct sim_op *find_chunk(const struct sim_table *chunks, const struct sim_op *op)
{
    const struct sim_rows *of = rows_of(chunks, op->a);
    for (size_t i = 0; i < of->n; i++)
        if (same_chunk(of->rows[i], op) && of->rows[i]->c == op->c)
            return of->rows[i];
    return NULL;
}

static bool chunk_between(const struct sim_op *row, const struct sim_op *op)
{
    return row->a == op->a && row->b >= op->b && row->b <= op->c;
}

// Another one serves in the place of a holder that did; a follower goes.
static void lose_copy(struct sim_table *chunks, struct sim_table *followers, const struct sim_op *op)
{
    struct sim_op *chunk = find_chunk(chunks, op), *first = NULL, gone = *op;
    const struct sim_rows *of = rows_of(followers, op->a);
    for (size_t i = 0; i < of->n; i++)
        if (same_chunk(of->rows[i], op) && (!first || strcmp(of->rows[i]->name, first->name) < 0))
            first = of->rows[i];
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
    struct sim_rows *of = rows_of(table, op->a);
    uint64_t lo = op->c, hi = op->c + op->d;
    for (size_t i = 0; i < of->n;) {
        const struct sim_op *row = of->rows[i];
        bool touches = row->b == op->b && row->c <= hi && row->c + row->d >= lo;
        if (!touches) {
            i++;
            continue;
        }
        lo = row->c < lo ? row->c : lo;
        hi = row->c + row->d > hi ? row->c + row->d : hi;
        row_remove(of, i);
        i = 0; // it may touch others now
    }
    row_add(table, &(struct sim_op){.kind = SIM_OP_RANGE, .a = op->a, .b = op->b, .c = lo, .d = hi - lo});
}

static void clip_ranges(struct sim_table *table, uint64_t session, uint64_t length)
{
    struct sim_rows *of = rows_of(table, session);
    for (size_t i = 0; i < of->n;) {
        struct sim_op *row = of->rows[i];
        if (row->c >= length) {
            row_remove(of, i);
            continue;
        }
        if (row->c + row->d > length)
            row->d = length - row->c;
        i++;
    }
}

static void set_numbers(struct sim_table *sessions, const struct sim_op *op)
{
    struct sim_rows *of = rows_of(sessions, op->a);
    for (size_t i = 0; i < of->n; i++) {
        of->rows[i]->b = op->b;
        of->rows[i]->c = op->c;
    }
}

static void use_token(struct sim_rows *tokens, const struct sim_op *op)
{
    for (size_t i = 0; i < tokens->n; i++)
        if (tokens->rows[i]->a == op->a)
            ((struct coordinator_token_row *)tokens->rows[i]->bytes)->used_s = op->b;
}

static void use_prefix(struct sim_rows *prefixes, const struct sim_op *op)
{
    for (size_t i = 0; i < prefixes->n; i++)
        if (prefixes->rows[i]->a == op->a)
            prefixes->rows[i]->c = op->b;
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
    case SIM_OP_WORKER_DROP:
        rows_remove(&tables[SIM_WORKERS], op, same_name);
        rows_remove(&tables[SIM_DRAINING], op, same_name);
        break;
    case SIM_OP_SESSION:
        replace(&tables[SIM_SESSIONS], op, same_session_or_name);
        break;
    case SIM_OP_NUMBERS:
        set_numbers(&tables[SIM_SESSIONS], op);
        break;
    case SIM_OP_SESSION_DROP:
        rows_remove(&tables[SIM_SESSIONS], op, same_session);
        rows_remove(&tables[SIM_MEMBERS], op, same_session);
        rows_remove(&tables[SIM_RANGES], op, same_session);
        rows_remove(&tables[SIM_KEYS], op, same_session);
        rows_remove(&tables[SIM_CUTS], op, same_session);
        rows_remove(&tables[SIM_FLOORS], op, same_session);
        remove_of(rows_of(&tables[SIM_PREFIXES], 0), op, same_session);
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
    case SIM_OP_PREFIX:
        replace(&tables[SIM_PREFIXES], op, same_session);
        break;
    case SIM_OP_PREFIX_USED:
        use_prefix(rows_of(&tables[SIM_PREFIXES], 0), op);
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
        rows_remove(&tables[SIM_SEALS], op, other_seal);
        break;
    case SIM_OP_FOLLOWER:
        replace(&tables[SIM_FOLLOWERS], op, same_follower);
        break;
    case SIM_OP_COPY_LOST:
        lose_copy(&tables[SIM_CHUNKS], &tables[SIM_FOLLOWERS], op);
        break;
    case SIM_OP_CHUNK_LOST:
        if (find_chunk(&tables[SIM_CHUNKS], op))
            find_chunk(&tables[SIM_CHUNKS], op)->d = true;
        break;
    case SIM_OP_SEAL:
        if (find_chunk(&tables[SIM_CHUNKS], op))
            replace(&tables[SIM_SEALS], op, same_chunk);
        break;
    case SIM_OP_CHUNK_DROP:
        rows_remove(&tables[SIM_CHUNKS], op, chunk_between);
        rows_remove(&tables[SIM_FOLLOWERS], op, chunk_between);
        rows_remove(&tables[SIM_SEALS], op, chunk_between);
        break;
    case SIM_OP_RANGE:
        add_range(&tables[SIM_RANGES], op);
        break;
    case SIM_OP_CLIP:
        clip_ranges(&tables[SIM_RANGES], op->a, op->b);
        break;
    case SIM_OP_TENANT:
        replace(&tables[SIM_TENANTS], op, same_session);
        break;
    case SIM_OP_TOKEN:
        replace(&tables[SIM_TOKENS], op, same_session);
        break;
    case SIM_OP_TOKEN_USED:
        use_token(rows_of(&tables[SIM_TOKENS], 0), op);
        break;
    case SIM_OP_TOKEN_DROP:
        rows_remove(&tables[SIM_TOKENS], op, same_session);
        break;
    case SIM_OP_QUOTA:
        replace(&tables[SIM_QUOTAS], op, same_member);
        break;
    }
}

// ---- reading --------------------------------------------------------------------------------------------

static int by_numbers(const void *x, const void *y)
{
    const struct sim_op *a = *(struct sim_op *const *)x, *b = *(struct sim_op *const *)y;
    const uint64_t p[] = {a->a, a->b, a->c}, q[] = {b->a, b->b, b->c};
    int n = a->kind == SIM_OP_RANGE                                                           ? 3
            : a->kind == SIM_OP_CHUNK || a->kind == SIM_OP_FOLLOWER || a->kind == SIM_OP_SEAL ? 2
            : a->kind == SIM_OP_WORKER                                                        ? 0
                                                                                              : 1;
    if (a->kind == SIM_OP_PREFIX && a->c != b->c) // by their last use
        return a->c < b->c ? -1 : 1;
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
        return r->session(r->arg, row->a, row->name, row->bytes, row->n_bytes, row->b, row->c,
                          (uint32_t)row->d);
    case SIM_OP_MEMBER:
        return r->member(r->arg, row->a, row->name);
    case SIM_OP_KEY:
        return r->key(r->arg, row->a, row->b);
    case SIM_OP_CUT:
        return r->cut(r->arg, row->a, row->b);
    case SIM_OP_FLOOR:
        return r->floor(r->arg, row->a, row->b);
    case SIM_OP_PREFIX:
        return !r->prefix ||
               r->prefix(r->arg, row->a, row->b, row->d >> 1, row->d & 1, row->bytes, row->n_bytes);
    case SIM_OP_DRAIN:
        return r->draining(r->arg, row->name, row->bytes, row->n_bytes);
    case SIM_OP_FOLLOWER:
        return r->follower(r->arg, row->a, (uint32_t)row->b, row->name);
    case SIM_OP_SEAL:
        return r->seal(r->arg, row->a, (uint32_t)row->b, row->d);
    case SIM_OP_CHUNK:
        return r->chunk(r->arg, row->a, (uint32_t)row->b, row->c, row->d != 0, row->name);
    case SIM_OP_TENANT:
        return !r->tenant || r->tenant(r->tenants, (uint32_t)row->a, row->name);
    case SIM_OP_QUOTA:
        return !r->quota || r->quota(r->quotas, (uint32_t)row->a, row->name, row->b);
    case SIM_OP_TOKEN:
        return !r->token || r->token(r->tenants, row->bytes);
    default:
        return r->range(r->arg, row->a, (uint32_t)row->b, row->c, row->d);
    }
}

static bool read_rows(const struct coordinator_store_reader *r, struct sim_rows *of)
{
    if (of->n)
        qsort(of->rows, of->n, sizeof(struct sim_op *), by_numbers);
    for (size_t i = 0; i < of->n; i++)
        if (!read_row(r, of->rows[i]))
            return false;
    return true;
}

enum common_code sim_tables_read(struct sim_tables *t, const struct coordinator_store_reader *r,
                                 struct common_error *err)
{
    for (int k = SIM_WORKERS; k < SIM_TABLES; k++)
        for (size_t i = 0; i < t->tables[k].n; i++)
            if (!read_rows(r, &t->tables[k].sessions[i]))
                return err && err->code != COMMON_OK ? err->code : COMMON_INTERNAL;
    return COMMON_OK;
}

uint64_t sim_tables_meta(const struct sim_tables *t, const char *key, uint64_t absent)
{
    const struct sim_rows *of = rows_of(&t->tables[SIM_META], 0);
    for (size_t i = 0; i < of->n; i++)
        if (!strcmp(of->rows[i]->name, key))
            return of->rows[i]->a;
    return absent;
}

void sim_tables_copy(const struct sim_tables *from, struct sim_tables *to)
{
    sim_tables_clear(to);
    for (int k = 0; k < SIM_TABLES; k++)
        for (size_t i = 0; i < from->tables[k].n; i++)
            for (size_t row = 0; row < from->tables[k].sessions[i].n; row++)
                row_add(&to->tables[k], from->tables[k].sessions[i].rows[row]);
}

void sim_tables_clear(struct sim_tables *t)
{
    for (int k = 0; k < SIM_TABLES; k++) {
        struct sim_table *table = &t->tables[k];
        for (size_t i = 0; i < table->n; i++) {
            while (table->sessions[i].n)
                row_remove(&table->sessions[i], table->sessions[i].n - 1);
            free(table->sessions[i].rows);
        }
        free(table->sessions);
        *table = (struct sim_table){0};
    }
}
