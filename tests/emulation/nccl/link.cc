// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/nccl/link.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

namespace
{
constexpr uint64_t MAGIC = 0x6c63636e6d65ULL;

struct id_content {
    uint64_t magic, token[2];
    int32_t pid, fd;
};

struct header { // zeros at first
    std::atomic<uint64_t> token[2];
    std::atomic<uint32_t> ranks, joined;
    std::atomic<uint8_t> closed; // the file, by its maker
    std::atomic<uint8_t> here[LINK_MOST_RANKS];
    std::atomic<uint8_t> ends[LINK_MOST_RANKS][LINK_MOST_RANKS][LINK_LANES]; // of connections [from][to]
};

enum { END_SENDS = 1, END_RECEIVES = 2 };

constexpr size_t HEADER = 16384;
static_assert(sizeof(header) <= HEADER);
} // namespace

struct link_memory::ring {
    alignas(64) std::atomic<uint64_t> pushed;
    alignas(64) std::atomic<uint64_t> taken;
    alignas(64) char bytes[LINK_RING];
};

bool link_make_id(ncclUniqueId *id)
{
    id_content content = {MAGIC, {0, 0}, getpid(), -1};
    if (getrandom(content.token, sizeof(content.token), 0) != sizeof(content.token))
        return false;
    content.fd = memfd_create("banyan-emulated-nccl", MFD_CLOEXEC);
    if (content.fd < 0)
        return false;
    void *memory = MAP_FAILED;
    if (ftruncate(content.fd, HEADER) == 0)
        memory = mmap(nullptr, HEADER, PROT_READ | PROT_WRITE, MAP_SHARED, content.fd, 0);
    if (memory == MAP_FAILED) {
        close(content.fd);
        return false;
    }
    header *h = static_cast<header *>(memory);
    h->token[0] = content.token[0];
    h->token[1] = content.token[1];
    munmap(memory, HEADER);
    std::memset(id, 0, sizeof(*id));
    std::memcpy(id, &content, sizeof(content));
    return true;
}

std::unique_ptr<link_memory> link_memory::open(const ncclUniqueId &id, int ranks, int rank, std::string *why)
{
    id_content content;
    std::memcpy(&content, &id, sizeof(content));
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", content.pid, content.fd);
    int fd = content.magic == MAGIC ? ::open(path, O_RDWR | O_CLOEXEC) : -1;
    size_t rings = sizeof(ring) * LINK_LANES * static_cast<size_t>(ranks * ranks), bytes = HEADER + rings;
    // Whatever stands there now must not be changed before it is known
    uint64_t token[2] = {0, 0};
    if (fd < 0 || pread(fd, token, sizeof(token), 0) != sizeof(token) || token[0] != content.token[0] ||
        token[1] != content.token[1] || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
        *why = std::string("the process that made the id cannot be reached: ") + std::strerror(errno);
        if (fd >= 0)
            close(fd);
        return nullptr;
    }
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED) {
        *why = std::string("no shared memory: ") + std::strerror(errno);
        return nullptr;
    }
    header *h = static_cast<header *>(memory);
    uint32_t said = 0;
    const char *misuse = nullptr;
    if (!h->ranks.compare_exchange_strong(said, static_cast<uint32_t>(ranks)) &&
        said != static_cast<uint32_t>(ranks))
        misuse = "ranks of one id do not agree on how many they are";
    else if (h->here[rank].exchange(1))
        misuse = "two ranks of one id have the same number";
    if (misuse) {
        std::fprintf(stderr, "emulated NCCL: %s\n", misuse);
        std::abort();
    }
    h->joined++;
    int own = content.pid == getpid() ? content.fd : -1;
    return std::unique_ptr<link_memory>(new link_memory(memory, bytes, ranks, rank, own));
}

link_memory::link_memory(void *mapped, size_t mapped_bytes, int all, int own, int fd)
    : memory(mapped), bytes(mapped_bytes), ranks(all), rank(own), own_fd(fd)
{
}

link_memory::~link_memory()
{
    munmap(memory, bytes);
}

bool link_memory::all_joined() const
{
    header *h = static_cast<header *>(memory);
    if (h->joined != static_cast<uint32_t>(ranks))
        return false;
    if (own_fd >= 0 && !h->closed.exchange(1)) // no other rank must open it any more
        close(own_fd);
    return true;
}

void link_memory::connect(int from, int to, link_lane lane)
{
    static_cast<header *>(memory)->ends[from][to][lane] |= from == rank ? END_SENDS : END_RECEIVES;
}

bool link_memory::connected(int from, int to, link_lane lane) const
{
    return static_cast<header *>(memory)->ends[from][to][lane] == (END_SENDS | END_RECEIVES);
}

link_memory::ring *link_memory::at(int from, int to, link_lane lane) const
{
    ring *rings = reinterpret_cast<ring *>(static_cast<char *>(memory) + HEADER);
    return rings + (from * ranks + to) * LINK_LANES + lane;
}

size_t link_memory::push(int to, link_lane lane, const char *from, size_t n)
{
    ring *r = at(rank, to, lane);
    uint64_t pushed = r->pushed.load(std::memory_order_relaxed);
    uint64_t taken = r->taken.load(std::memory_order_acquire);
    n = std::min<uint64_t>(n, LINK_RING - (pushed - taken));
    size_t start = pushed % LINK_RING, straight = std::min(n, LINK_RING - start);
    if (straight > 0)
        std::memcpy(r->bytes + start, from, straight);
    if (n > straight)
        std::memcpy(r->bytes, from + straight, n - straight);
    r->pushed.store(pushed + n, std::memory_order_release);
    return n;
}

size_t link_memory::take(int from, link_lane lane, char *to, size_t n)
{
    ring *r = at(from, rank, lane);
    uint64_t taken = r->taken.load(std::memory_order_relaxed);
    uint64_t pushed = r->pushed.load(std::memory_order_acquire);
    n = std::min<uint64_t>(n, pushed - taken);
    size_t start = taken % LINK_RING, straight = std::min(n, LINK_RING - start);
    if (straight > 0)
        std::memcpy(to, r->bytes + start, straight);
    if (n > straight)
        std::memcpy(to + straight, r->bytes, n - straight);
    r->taken.store(taken + n, std::memory_order_release);
    return n;
}
