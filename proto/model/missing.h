// SPDX-License-Identifier: Apache-2.0
// Limits of partial answers (docs/reference/wire.md, "Partial answers"), which coordinator and clients check
// alike.
#ifndef PROTO_MISSING_H
#define PROTO_MISSING_H

#define PROTO_MISSING_MAX         262144u // ranges that the answer to one call declares: 4 MiB
#define PROTO_MISSING_RANGE_BYTES 16u     // of one of them, in the tensor

#endif
