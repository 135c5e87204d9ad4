#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The same seed gives the same events, byte for byte, under every build: compares the traces of two.
#   same_traces.sh CHAOS_TEST CHAOS_TEST [SEEDS]
set -eu
for seed in $(seq "${3:-50}"); do
    one=$("$1" --seed "$seed" 2>/dev/null | tail -n 1)
    other=$("$2" --seed "$seed" 2>/dev/null | tail -n 1)
    if [ "$one" != "$other" ]; then
        printf 'seed %s differs:\n  %s\n  %s\n' "$seed" "$one" "$other" >&2
        exit 1
    fi
done
echo "${3:-50} seeds are the same"
