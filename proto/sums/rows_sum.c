// SPDX-License-Identifier: Apache-2.0
#include "proto/sums/rows_sum_run.h"

uint64_t proto_rows_sum_plain(const struct proto_rows_piece *piece)
{
    return rows_sum_run(piece);
}

uint64_t proto_rows_sum(const struct proto_rows_piece *piece)
{
#ifdef PROTO_X86_64
    if (common_cpu_avx2())
        return proto_rows_sum_avx2(piece);
#endif
    return proto_rows_sum_plain(piece);
}
