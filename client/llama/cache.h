// SPDX-License-Identifier: Apache-2.0
// A KV cache of llama.cpp, as sessions.
//
// llama.cpp keeps a cache as tensors K and V for each layer, [heads * dim][cells][streams]; with
// --no-kv-unified each sequence has a stream of its own. Here a stream is one session, and a cell's index is
// the position in it. Where there is one stream for all sequences, llama.cpp's default, each sequence is a
// list of its cells (cells.h), and a stream here is such a list. Nothing is in the tensors' memory but what
// lies there between a state's K and its V (cache_put_rows). What llama.cpp does to cells, the session
// follows when it is written next:
//   a cell below the length is written again     the session is truncated to it
//   a stream is copied (seq_cp)                  the session is forked
//   the cache is cleared                         the sessions are truncated to 0
// What cannot be followed is an error until cell 0 is written again, or the cache is cleared. Nothing is ever
// answered from other rows.
//
// Layers are learnt from attentions (cache_learn), which the scheduler shows before it computes. All calls
// lock the cache but those that say that the caller does.
#ifndef BANYAN_LLAMA_CACHE_H
#define BANYAN_LLAMA_CACHE_H

#include <ggml.h>
#include <pthread.h>

#include "client/banyan.h"
#include "client/llama/cells.h"
#include "client/llama/cluster.h"
#include "client/llama/mask.h"
#include "client/llama/rows.h"

enum { CACHE_WHY = 640 };
// A sentence into out, cut where it is too long; what it is made of may lie in out itself.
void cache_say(char out[CACHE_WHY], const char *format, ...) __attribute__((format(printf, 2, 3)));

struct cache_layer {
    const struct ggml_tensor *k, *v; // the cache's tensors; v == k: V lies in K
    uint32_t q_heads, kv_heads, k_dim, v_dim;
    float scale, soft_cap, max_bias;
    const struct ggml_tensor *sinks; // NULL: none
    const struct ggml_tensor *put_k,
        *put_v;    // SET_ROWS of the graph that is being computed, whose rows are not sent yet
    uint64_t plan; // of cache->plans, that it has used
};

struct cache_stream {
    banyan_session *session; // NULL: none yet
    uint64_t *lengths;       // [layers] as the session was made with
    uint32_t layers;
    uint64_t window, chunk; // the session was made with
    bool unsure;            // a call has failed: the cluster is asked before the next one
    bool away;              // and it was that the cluster did not answer
    char lost[CACHE_WHY];   // why its cells cannot be used until cell 0 is written again; "": they can
    uint64_t changes;       // counts whatever is done to it
    uint32_t copied_from;   // by the last copy, and what both had counted then
    uint64_t copied_changes, changes_after;
    uint64_t staged_first, staged_end; // rows of K that wait for their V (cache_put_rows)
    unsigned char kept[16];            // what a saved state calls it (cache_kept.h), and where it is kept
    uint64_t kept_changes;             // `changes` + 1 when that was made; 0: it was not
    bool from_kept;                    // a state that is being restored is one of names
};

struct cache {
    pthread_mutex_t lock;
    struct cache_layer *layers;
    uint32_t n_layers;
    struct cache_stream *streams;
    uint32_t n_streams;
    uint64_t cells;
    struct cells *shared;   // NULL: each sequence has its own cells. Else stream i is its list i
    uint64_t plans;         // of shared, so far: one a batch
    uint32_t restored;      // the list that a state was restored to last; CELLS_NONE: none, or it is in use
    bool restoring;         // and what came last were the first layer's keys, which name its cells
    uint64_t window, chunk; // that masks have shown; 0: none so far
    char why[CACHE_WHY];    // of the last failure
    struct rows_memory q, k, v, k_scale, v_scale, mask, written;
    bool due; // atomic: its sessions are to be used (cache_use)
    bool
        doubted; // window and chunk did not hold for a later mask: they are forgotten at the next start of a sequence
    unsigned number; // of caches in this process, for names
    // Of the list of all caches, and under its lock:
    struct cache *next;
    uint64_t round;    // in which its sessions were asked for last
    bool pinned, gone; // they are being asked for; it was freed
};

// NULL: no memory.
struct cache *cache_new(void);
// Deletes its sessions, now or once a question about them that is under way has been answered. NULL is
// allowed.
void cache_free(struct cache *cache);

// Starts the thread that asks for sessions of all caches which would expire, where there is none yet.
void cache_keep_from_now(const struct settings *settings);

// What a FLASH_ATTN_EXT over the cache says of its layer. false: it cannot be served; cache->why.
bool cache_learn(struct cache *cache, const struct ggml_tensor *attention);
bool cache_learn_locked(struct cache *cache, const struct ggml_tensor *attention); // the caller has locked
// The view of a cache that a source of an attention is. Of a float32 cache llama.cpp hands over a copy in
// float16: the copied view. That copy is never made; attention reads what the session holds.
const struct ggml_tensor *cache_source(const struct ggml_tensor *source);
// The layer of a tensor of the cache, its K or its V; NULL: no attention has named it. The caller has locked.
struct cache_layer *cache_layer_of(struct cache *cache, const struct ggml_tensor *root);

// Makes the stream's session one whose layer has exactly `first` rows, which then may be appended; creates,
// truncates, or recreates it with a window. The caller has locked. false: cache->why.
bool cache_begin(struct cache *cache, uint32_t stream, const struct cache_layer *layer, uint64_t first);
// The stream's session for reading `end` rows of a layer. The caller has locked.
bool cache_look(struct cache *cache, uint32_t stream, const struct cache_layer *layer, uint64_t end);
// Takes over the plan of cache->shared: forks sessions, and shortens those whose cells are others' now. The
// caller has locked. false: cache->why.
bool cache_follow(struct cache *cache);
// The session of a list that cells_collect has made: rows of other sessions are copied. The caller has
// locked. false: cache->why, and the list is of length 0.
bool cache_collect(struct cache *cache, uint32_t number);
// The first `length` rows of a session that is not a stream's, as the stream's, which lives as all do. The
// caller has locked. false: cache->why.
bool cache_fork_of(struct cache *cache, uint32_t stream, banyan_session *origin, uint64_t length);
// As many streams as cache->shared has lists. The caller has locked. false: cache->why, no memory.
bool cache_room(struct cache *cache);
// Asks what the cluster has of the stream's session, where a call has failed. The caller has locked. false:
// cache->why.
bool cache_ask(struct cache *cache, uint32_t stream);
// A call has failed: what the session has is asked before it is used again. The caller has locked.
void cache_doubt(struct cache *cache, uint32_t stream, banyan_code code);
// Asks for sessions that would expire, where that is due. The caller has locked.
void cache_use(struct cache *cache);
banyan_kv_type cache_held(const struct cache *cache); // the caller has locked

// What forks (cache_fork.c) do with a stream's session. The caller has locked.
// Ends it; delete: in the cluster, too, but not where the cluster does not answer, which would be waited for.
// false: it did not answer.
bool cache_drop_session(struct cache_stream *stream, bool delete);
// A session without rows, of all layers. false: cache->why.
bool cache_create_session(struct cache *cache, uint32_t number);
// `lengths`, all 0. false: no memory.
bool cache_take_lengths(struct cache_stream *stream, uint32_t layers);
// Another one each time that the stream has changed.
void cache_name_of(const struct cache *cache, uint32_t number, char out[128]);
// To at most `length` rows. false: cache->why; where the session is not there any more, the stream has none
// afterwards.
bool cache_truncate(struct cache *cache, uint32_t number, uint64_t length);
// Rows [from, from + length) of a layer of a stream's session to another session, from position `begin` on,
// in pieces. false: cache->why.
bool cache_move_rows(struct cache *cache, uint32_t number, const struct cache_layer *layer, uint64_t from,
                     banyan_session *to, uint64_t begin, uint64_t length);

// Rows of the cache as ggml's bytes, from and to a tensor of it: offset and size in bytes of the whole
// tensor. Where rows cannot be read, false, cache->why, and all bytes are 0xff: NaN in every type, and
// refused by cache_put_rows. What is put is in the session once its V has come, or the stream is lost and
// says so when it is used.
bool cache_get_rows(struct cache *cache, const struct ggml_tensor *root, void *out, size_t offset,
                    size_t size);
void cache_put_rows(struct cache *cache, const struct ggml_tensor *root, const void *data, size_t offset,
                    size_t size);
void cache_copy(struct cache *cache, uint32_t from, uint32_t to);
void cache_clear(struct cache *cache);
// No stream that has rows can be used until its cell 0 is written again.
void cache_lose(struct cache *cache, const char *why);

#endif
