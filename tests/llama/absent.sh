#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands in CTest's list for the tests of llama.cpp's plug-in where it is not built. CTest counts it as skipped.
echo "THE PLUG-IN OF llama.cpp IS NOT TESTED: this build has none. tests/llama/fetch.sh FOLDER, then"
echo "cmake --preset release -DBANYAN_LLAMA_SOURCE=FOLDER/llama.cpp -DBANYAN_GGML_LIB=FOLDER/lib"
exit 77
