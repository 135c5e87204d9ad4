// SPDX-License-Identifier: Apache-2.0
#include "tests/coordinator/store_suite.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/hash/hash.h"

char store_folder[64], store_path[128];
struct common_loop *store_loop;
uint32_t store_done, store_failed;

static bool on_worker(void *arg, const char *name, uint64_t instance)
{
    struct store_seen *seen = arg;
    assert_string_equal(name, "w0");
    seen->workers++;
    seen->instance = instance;
    return true;
}

static bool on_session(void *arg, uint64_t id, const char *name, const void *spec, size_t spec_bytes,
                       uint64_t incarnation, uint64_t epoch, uint32_t tenant)
{
    struct store_seen *seen = arg;
    seen->sessions++;
    seen->session = id;
    seen->incarnation = incarnation;
    seen->tenant = tenant;
    seen->epoch = epoch;
    snprintf(seen->name, sizeof(seen->name), "%s", name);
    snprintf(seen->spec, sizeof(seen->spec), "%.*s", (int)spec_bytes, (const char *)spec);
    return true;
}

static bool on_member(void *arg, uint64_t session, const char *worker)
{
    struct store_seen *seen = arg;
    (void)session, (void)worker;
    seen->members++;
    return true;
}

static bool on_chunk(void *arg, uint64_t session, uint32_t index, uint64_t id, bool lost, const char *holder)
{
    struct store_seen *seen = arg;
    (void)session;
    seen->chunks++;
    seen->lost += lost;
    seen->chunk_sum += id * (index + 1);
    snprintf(seen->holder, sizeof(seen->holder), "%s", holder);
    return true;
}

static bool on_follower(void *arg, uint64_t session, uint32_t index, const char *holder)
{
    struct store_seen *seen = arg;
    size_t at = strlen(seen->followers);
    (void)session;
    snprintf(seen->followers + at, sizeof(seen->followers) - at, "%s%u:%s", at ? " " : "", index, holder);
    return true;
}

static bool on_seal(void *arg, uint64_t session, uint32_t index, uint64_t seal)
{
    struct store_seen *seen = arg;
    size_t at = strlen(seen->seals);
    (void)session;
    snprintf(seen->seals + at, sizeof(seen->seals) - at, "%s%u:%llu", at ? " " : "", index,
             (unsigned long long)seal);
    return true;
}

static bool on_range(void *arg, uint64_t session, uint32_t layer, uint64_t first, uint64_t count)
{
    struct store_seen *seen = arg;
    (void)session;
    assert_int_equal(layer, 3);
    assert_true(coordinator_rangeset_add(&seen->ranges, first, count, NULL));
    seen->n_ranges++;
    return true;
}

static bool on_cut(void *arg, uint64_t session, uint64_t cut)
{
    struct store_seen *seen = arg;
    (void)session;
    seen->cut = cut;
    return true;
}

static bool on_floor(void *arg, uint64_t session, uint64_t floor)
{
    struct store_seen *seen = arg;
    assert_int_equal(session, seen->session);
    seen->floor = floor;
    return true;
}

static bool on_prefix(void *arg, uint64_t session, uint64_t incarnation, uint64_t ttl_ns, bool pinned,
                      const void *hashes, size_t bytes)
{
    struct store_seen *seen = arg;
    size_t at = strlen(seen->prefixes);
    snprintf(seen->prefixes + at, sizeof(seen->prefixes) - at, "%s%llx:%llu:%llu:%d:%.*s", at ? " " : "",
             (unsigned long long)session, (unsigned long long)incarnation, (unsigned long long)ttl_ns, pinned,
             (int)bytes, (const char *)hashes);
    return true;
}

static bool on_key(void *arg, uint64_t session, uint64_t key)
{
    struct store_seen *seen = arg;
    assert_int_equal(session, seen->session);
    seen->key = key;
    return true;
}

static bool on_draining(void *arg, const char *worker, const void *reason, size_t reason_bytes)
{
    struct store_seen *seen = arg;
    snprintf(seen->draining, sizeof(seen->draining), "%s: %.*s", worker, (int)reason_bytes,
             (const char *)reason);
    return true;
}

static bool on_tenant(void *arg, uint32_t id, const char *name)
{
    struct store_seen *seen = arg;
    size_t at = strlen(seen->tenants);
    snprintf(seen->tenants + at, sizeof(seen->tenants) - at, "%s%u:%s", at ? " " : "", id, name);
    return true;
}

static bool on_token(void *arg, const struct coordinator_token_row *row)
{
    struct store_seen *seen = arg;
    seen->tokens++;
    seen->token = *row;
    return true;
}

static bool on_quota(void *arg, uint32_t tenant, const char *name, uint64_t max)
{
    struct store_seen *seen = arg;
    size_t at = strlen(seen->quotas);
    snprintf(seen->quotas + at, sizeof(seen->quotas) - at, "%s%u:%s=%llu", at ? " " : "", tenant, name,
             (unsigned long long)max);
    return true;
}

static void on_id_key(void *arg, const uint64_t key[2])
{
    struct store_seen *seen = arg;
    assert_int_equal(seen->sessions, 0); // before them
    seen->id_keys++;
    seen->id_key[0] = key[0], seen->id_key[1] = key[1];
}

struct coordinator_store_reader store_reader(struct store_seen *seen)
{
    return (struct coordinator_store_reader){seen,        on_worker, on_session,  on_member, on_chunk,
                                             on_follower, on_seal,   on_range,    on_key,    on_cut,
                                             on_floor,    on_prefix, on_draining, on_tenant, on_token,
                                             seen,        on_quota,  seen,        on_id_key};
}

enum common_code store_open(struct store_seen *seen, struct coordinator_store **out, struct common_error *err)
{
    struct coordinator_store_reader reader = store_reader(seen);
    memset(seen, 0, sizeof(*seen));
    return coordinator_store_open(store_path, false, store_loop, &reader, out, err);
}

static void written(void *arg, enum common_code code, const char *text)
{
    (void)arg, (void)text;
    store_done++;
    store_failed += code != COMMON_OK;
}

void store_submit(struct coordinator_store *store, struct coordinator_batch *batch)
{
    coordinator_store_submit(store, batch, written, NULL);
}

// Waits for everything that was submitted, then closes.
void store_close(struct coordinator_store *store)
{
    coordinator_store_stop(store);
    common_loop_stop(store_loop);
    common_loop_run(store_loop);
    coordinator_store_free(store);
}

int store_setup(void **state)
{
    (void)state;
    snprintf(store_folder, sizeof(store_folder), "/tmp/banyan-store-XXXXXX");
    assert_non_null(mkdtemp(store_folder));
    snprintf(store_path, sizeof(store_path), "%s/deep/er/store.db", store_folder);
    assert_int_equal(common_loop_new(&store_loop), COMMON_OK);
    store_done = store_failed = 0;
    return 0;
}

int store_teardown(void **state)
{
    (void)state;
    char command[128];
    common_loop_free(store_loop);
    snprintf(command, sizeof(command), "rm -rf %s", store_folder);
    return system(command);
}

int store_child_status(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}
