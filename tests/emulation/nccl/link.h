// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of an emulated communicator share: who has joined, and for every ordered pair of
// ranks two rings of bytes, one for sends and one for collectives. It is an anonymous file of the process
// that made the id, which others open by way of /proc: nothing is left over, however a process ends. As with
// NCCL, no rank can join any more when that process is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <nccl.h>

constexpr int LINK_MOST_RANKS = 64;
constexpr size_t LINK_RING = 64 * 1024; // bytes that are buffered

enum link_lane { LINK_SENDS, LINK_COLLECTIVES, LINK_LANES };

struct link_message { // before the bytes of each message; what both sides must agree upon
    uint32_t kind, type, op, root;
    uint64_t bytes, number;
};

// Makes the memory that the id names. Until all have joined it costs this process a file descriptor.
bool link_make_id(ncclUniqueId *id);

class link_memory
{
  public:
    // NULL with the reason: the process that made the id is gone, say.
    static std::unique_ptr<link_memory> open(const ncclUniqueId &id, int ranks, int rank, std::string *why);
    ~link_memory();
    link_memory(const link_memory &) = delete;
    link_memory &operator=(const link_memory &) = delete;

    bool all_joined() const;
    // The connection of two ranks: each end says that it is there, and it stands when both have.
    void connect(int from, int to, link_lane lane);
    bool connected(int from, int to, link_lane lane) const;
    // As many bytes as there is room for, or as there are.
    size_t push(int to, link_lane lane, const char *bytes, size_t n);
    size_t take(int from, link_lane lane, char *bytes, size_t n);

  private:
    link_memory(void *mapped, size_t mapped_bytes, int all, int own, int fd);
    struct ring;
    ring *at(int from, int to, link_lane lane) const;

    void *memory;
    size_t bytes;
    int ranks, rank;
    int own_fd; // the file, where this process made it, or -1
};
