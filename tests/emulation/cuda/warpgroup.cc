// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/cuda/warpgroup.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/emulation/cuda/warp.h"

namespace
{
struct under_way : emulated_product {
    int group;
    int before; // the product that made what d holds, -1: `in` does
    float in[32], out[32];
};

struct thread_products {
    std::vector<under_way> list;
    int group;
    bool fenced, written;
};

thread_products threads[EMULATED_THREADS];

thread_products &mine()
{
    return threads[emulated_self->thread.x];
}

// The element of a matrix in shared memory with a swizzle of 128 bytes: `row` of 128 bytes or more, `column`
// of 16 bits.
uint16_t element(uint64_t matrix, int row, int column)
{
    uint32_t at = static_cast<uint32_t>(matrix & 0x3fffu) * 16,
             stride = static_cast<uint32_t>(matrix >> 32 & 0x3fffu) * 16;
    at += static_cast<uint32_t>(row / 8) * stride + static_cast<uint32_t>(row % 8) * 128 +
          static_cast<uint32_t>(column) * 2;
    at ^= (at >> 7 & 7) << 4;
    if (at + 2 > emulated_shared_bytes())
        emulated_fault("a matrix reaches past shared memory");
    uint16_t x;
    std::memcpy(&x, emulated_self->shared + at, sizeof(x));
    return x;
}

void check_matrix(uint64_t matrix)
{
    if (matrix >> 62 != 1)
        emulated_fault("the swizzle of a matrix is not that of 128 bytes");
    if ((matrix >> 49 & 7) != 0 || (matrix * 16 >> 7 & 7) != 0)
        emulated_fault("a matrix does not start at a multiple of 1,024 bytes");
}

void make(size_t index)
{
    const under_way &first = threads[0].list[index];
    static double a[64][16], b[64][16]; // b by columns
    for (int n = 0; n < 64; n++) {
        for (int k = 0; k < 16; k++) {
            b[n][k] = emulated_element(first.bf16, first.columns ? element(first.b_matrix, k, n)
                                                                 : element(first.b_matrix, n, k));
            if (!first.columns)
                a[n][k] = emulated_element(first.bf16, element(first.a_matrix, n, k));
        }
    }
    for (int i = 0; i < EMULATED_THREADS; i++) {
        const under_way &p = threads[i].list[index];
        if (p.bf16 != first.bf16 || p.add != first.add || p.columns != first.columns ||
            p.a_matrix != first.a_matrix || p.b_matrix != first.b_matrix || p.group != first.group)
            emulated_fault("threads of a warpgroup make different products");
        const int row = i / 32 * 16 + i % 32 / 4, column = i % 4 * 2;
        for (int j = 0; p.columns && j < 8; j++)
            a[row + j / 2 % 2 * 8][column + j / 4 * 8 + j % 2] =
                emulated_element(p.bf16, static_cast<uint16_t>(p.a[j / 2] >> (16 * (j % 2))));
    }
    for (int i = 0; i < EMULATED_THREADS; i++) {
        under_way &p = threads[i].list[index];
        const float *in = p.before < 0 ? p.in : threads[i].list[static_cast<size_t>(p.before)].out;
        for (int j = 0; j < 32; j++) {
            const int row = i / 32 * 16 + i % 32 / 4 + j / 2 % 2 * 8, column = j / 4 * 8 + i % 4 * 2 + j % 2;
            float sum = p.add ? in[j] : 0.0f;
            for (int half = 0; half < 16; half += 8) {
                double terms[9];
                for (int k = 0; k < 8; k++)
                    terms[k] = a[row][half + k] * b[column][half + k];
                terms[8] = sum;
                sum = emulated_cut_sum(terms, 9);
            }
            p.out[j] = sum;
        }
    }
}

void complete(int groups)
{
    size_t done = 0;
    for (const thread_products &t : threads) {
        if (t.list.size() != threads[0].list.size() || t.group != threads[0].group)
            emulated_fault("threads of a warpgroup have made different products");
    }
    while (done < threads[0].list.size() && threads[0].list[done].group < threads[0].group - groups)
        make(done++);
    for (thread_products &t : threads) {
        for (size_t i = 0; i < done; i++)
            std::memcpy(t.list[i].d, t.list[i].out, sizeof(t.list[i].out));
        for (size_t i = done; i < t.list.size(); i++) {
            under_way &p = t.list[i];
            if (p.before >= 0 && static_cast<size_t>(p.before) < done)
                std::memcpy(p.in, t.list[static_cast<size_t>(p.before)].out, sizeof(p.in));
            p.before = p.before < static_cast<int>(done) ? -1 : p.before - static_cast<int>(done);
            std::memset(p.d, EMULATED_RUBBISH, sizeof(p.out));
        }
        t.list.erase(t.list.begin(), t.list.begin() + static_cast<long>(done));
        t.fenced = false;
    }
}
} // namespace

void emulated_group_product(const emulated_product &product)
{
    thread_products &t = mine();
    if (!t.fenced)
        emulated_fault("a product without a fence since registers were used");
    for (const thread_products &other : threads) {
        if (other.written)
            emulated_fault("a product of shared memory that was written without wgmma_shared()");
    }
    check_matrix(product.b_matrix);
    if (!product.columns)
        check_matrix(product.a_matrix);
    under_way p;
    static_cast<emulated_product &>(p) = product;
    p.group = t.group;
    p.before = -1;
    for (size_t i = 0; i < t.list.size(); i++)
        p.before = t.list[i].d == p.d ? static_cast<int>(i) : p.before;
    std::memcpy(p.in, p.d, sizeof(p.in));
    std::memset(p.d, EMULATED_RUBBISH, sizeof(p.in));
    t.list.push_back(p);
}

void emulated_group_shared()
{
    mine().written = false;
}

void emulated_group_fence()
{
    mine().fenced = true;
}

void emulated_group_commit()
{
    mine().group++;
}

void emulated_group_wait(int groups)
{
    emulated_meet(complete, groups);
}

void emulated_group_start(unsigned i)
{
    threads[i].list.clear();
    threads[i].group = 0;
    threads[i].fenced = threads[i].written = false;
}

bool emulated_group_done(unsigned i)
{
    return threads[i].list.empty();
}

void emulated_group_written(unsigned i)
{
    threads[i].written = true;
}
