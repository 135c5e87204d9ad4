#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Random faults with seeds that nobody has run before: they follow from the text of the product, so that each change has
# others, and a run of the tests says the same to whoever repeats it.
#   run_new.sh CHAOS_TEST SEEDS
set -eu
cd "$(dirname "$0")/../.."
text=$(find common coordinator kernels proto reduce worker tests/sim -type f \( -name '*.c' -o -name '*.h' -o -name '*.proto' \) |
    LC_ALL=C sort | xargs cat | cksum)
exec "$1" --seeds "$2" --from "$((${text%% *} * 100000))"
