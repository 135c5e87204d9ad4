// SPDX-License-Identifier: Apache-2.0
// What every engine promises, as tests over its ops table. Run by a test program for each engine.
#ifndef TESTS_REDUCE_ENGINE_CONFORMANCE_H
#define TESTS_REDUCE_ENGINE_CONFORMANCE_H

#include "reduce/engine.h"

// Runs all of them as one cmocka group; returns how many failed. `collective`: the engine carries partials
// outside of the answers once its ranks have formed what they need; each test waits for that.
int engine_conformance_run(const struct reduce_engine_ops *ops, bool collective);

#endif
