// SPDX-License-Identifier: Apache-2.0
// What every transport must do, run over one of them.
#ifndef TESTS_PROTO_CONFORMANCE_H
#define TESTS_PROTO_CONFORMANCE_H

#include "tests/proto/fixture.h"

int conformance_run(enum transport transport); // exit status

#endif
