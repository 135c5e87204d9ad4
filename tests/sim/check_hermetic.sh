#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fails when a program that is linked with the simulator can make threads, wait for sockets, open a database or draw
# random numbers of its own: then a part of the product has been linked that a seam should have kept out.
#   check_hermetic.sh PROGRAM
set -eu
found=$(nm -D --undefined-only "$1" | sed 's/^ *[A-Za-z] //; s/@.*//' |
    grep -E '^(pthread_create|epoll_.*|poll|select|accept4?|connect|listen|send(to|msg)?|recv(from|msg)?|eventfd|event_.*|sqlite3_.*|nng_.*|getrandom)$' || true)
if [ -n "$found" ]; then
    echo "$1 is not hermetic, it wants:" $found >&2
    exit 1
fi
