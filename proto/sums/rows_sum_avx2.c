// SPDX-License-Identifier: Apache-2.0
// Compiled with AVX2.
#include "proto/sums/rows_sum_run.h"

uint64_t proto_rows_sum_avx2(const struct proto_rows_piece *piece)
{
    return rows_sum_run(piece);
}
