// SPDX-License-Identifier: Apache-2.0
// A cluster that does not answer keeps only its own callers waiting: the thread that keeps sessions from
// expiring (client/llama/cache.c, as it is) against a libbanyan of the test's own.
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/llama/cache.h"
#include "client/llama/spec.h"

static atomic_uint asked, closed;
static atomic_bool answers;

banyan_code banyan_session_get_info(banyan_session *session, banyan_session_info *info, banyan_error *error)
{
    (void)session, (void)info, (void)error;
    atomic_fetch_add(&asked, 1);
    while (!atomic_load(&answers))
        usleep(1000);
    return BANYAN_UNAVAILABLE;
}

void banyan_session_close(banyan_session *session)
{
    atomic_fetch_add(&closed, session != NULL);
}

static struct settings settings = {.ttl_ns = 40000000};

const struct settings *cluster_settings(char *why, size_t why_bytes)
{
    (void)why, (void)why_bytes;
    return &settings;
}

static struct cache *cache_with_session(void)
{
    struct cache *cache = cache_new();
    assert_non_null(cache);
    cache->streams = calloc(1, sizeof *cache->streams);
    assert_non_null(cache->streams);
    cache->streams[0].session = (banyan_session *)&settings; // it is not looked into
    cache->n_streams = 1;
    return cache;
}

// Other caches are made and freed meanwhile, and the one that is being asked for is freed by its caller at
// once, and in truth once the question has ended.
static void no_call_waits_for_a_question_of_another(void **state)
{
    (void)state;
    struct cache *cache = cache_with_session();
    cache_keep_from_now(&settings);
    while (!atomic_load(&asked))
        usleep(1000);
    struct cache *other = cache_new();
    assert_non_null(other);
    cache_free(other);
    cache_free(cache);
    assert_int_equal(atomic_load(&closed), 0);
    atomic_store(&answers, true);
    while (!atomic_load(&closed))
        usleep(1000);
    assert_int_equal(atomic_load(&closed), 1);
}

// ---- what is not called ------------------------------------------------------------------------------------

#define NEVER(type, name, ...)                                                                               \
    type name(__VA_ARGS__)                                                                                   \
    {                                                                                                        \
        abort();                                                                                             \
    }
NEVER(void, banyan_session_info_free, banyan_session_info *info)
NEVER(banyan_code, banyan_session_delete, banyan_session *s, banyan_error *e)
NEVER(banyan_code, banyan_session_truncate, banyan_session *s, uint64_t n, banyan_error *e)
NEVER(banyan_code, banyan_attach, banyan_session *s, uint32_t layer, uint64_t first, uint64_t n,
      const void *k, const void *v, banyan_error *e)
NEVER(banyan_code, banyan_attach_scaled, banyan_session *s, uint32_t layer, uint64_t first, uint64_t n,
      const void *k, const float *ks, const void *v, const float *vs, banyan_error *e)
NEVER(banyan_code, banyan_commit, banyan_session *s, uint32_t layer, uint64_t first, uint64_t n,
      banyan_error *e)
NEVER(banyan_code, banyan_read_rows, banyan_session *s, uint32_t layer, uint64_t first, uint64_t n, void *k,
      float *ks, void *v, float *vs, banyan_error *e)
NEVER(bool, banyan_kv_scaled, banyan_kv_type type)
NEVER(banyan_client *, cluster_client, char *why, size_t why_bytes)
NEVER(banyan_kv_type, rows_kv_type, enum ggml_type k, enum ggml_type v, bool q8_as_int8)
NEVER(size_t, rows_bytes, banyan_kv_type held, uint64_t elements)
NEVER(banyan_code, spec_create, struct cache *cache, banyan_client *client, const char *name,
      banyan_session **out)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_call_waits_for_a_question_of_another)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
