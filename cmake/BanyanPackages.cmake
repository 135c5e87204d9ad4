# SPDX-License-Identifier: Apache-2.0
# Packages and the Debian names that bring them: deploy/install-deps.sh installs all of these.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(nng 1.5 CONFIG REQUIRED)                                   # libnng-dev
pkg_check_modules(PROTOBUFC REQUIRED IMPORTED_TARGET libprotobuf-c)     # libprotobuf-c-dev
pkg_check_modules(EVENT REQUIRED IMPORTED_TARGET libevent libevent_pthreads libevent_openssl) # libevent-dev
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)            # libssl-dev
pkg_check_modules(SSL REQUIRED IMPORTED_TARGET libssl)                  # libssl-dev
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)            # libxxhash-dev
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)              # libsqlite3-dev
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)             # libjansson-dev
pkg_check_modules(SMARTCOLS REQUIRED IMPORTED_TARGET smartcols)         # libsmartcols-dev
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)                # libzstd-dev
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)               # libcmocka-dev
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)                 # libhwloc-dev
find_program(PROTOC_C protoc-c REQUIRED)                                # protobuf-c-compiler
