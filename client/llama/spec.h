// SPDX-License-Identifier: Apache-2.0
// The spec of a session that holds one stream of a cache.
#ifndef BANYAN_LLAMA_SPEC_H
#define BANYAN_LLAMA_SPEC_H

#include "client/llama/cache.h"

// Creates the stream's session. The caller has locked. Not OK: cache->why.
banyan_code spec_create(struct cache *cache, banyan_client *client, const char *name, banyan_session **out);

// Whether a session has this spec, but for its window, which the cache takes where it has none itself. The
// caller has locked. false: cache->why.
bool spec_is(struct cache *cache, const banyan_spec *spec);

#endif
