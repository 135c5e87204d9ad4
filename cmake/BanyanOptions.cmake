# SPDX-License-Identifier: Apache-2.0
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # gnu11: accept4, eventfd, typeof
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(BANYAN_SANITIZE "" CACHE STRING "Sanitizers: empty, 'address,undefined' or 'thread'")

option(BANYAN_FAILPOINTS "Named points where tests make processes die, stall or fail (common/base/failpoint.h)" OFF)
if(BANYAN_FAILPOINTS)
    add_compile_definitions(BANYAN_FAILPOINTS)
endif()

add_compile_options(-Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes
    -Wpointer-arith -Wvla -Wformat=2 -Wno-format-nonliteral -fno-common -fno-math-errno
    -fno-semantic-interposition # a file's own public functions may be inlined in it
    -UNDEBUG # assertions stand in every build
    -ffp-contract=off) # contraction changes bits between compilers: kernels ask for fma by name
add_compile_definitions(_GNU_SOURCE)
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
if(BANYAN_SANITIZE)
    set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g1") # what they insert takes compilers twice as long at -O2; files and lines are enough
    add_compile_options(-fsanitize=${BANYAN_SANITIZE} -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${BANYAN_SANITIZE})
    if(BANYAN_SANITIZE MATCHES undefined)
        add_compile_options(-fno-sanitize-recover=undefined)
    endif()
    if(CMAKE_C_COMPILER_ID STREQUAL GNU) # what gcc guesses from the flow of values is wrong in such code; other builds have it
        add_compile_options(-Wno-error -Wno-array-bounds -Wno-format-overflow -Wno-format-truncation
            -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-stringop-overread -Wno-stringop-truncation)
    endif()
endif()

option(BANYAN_FUZZ "tests/fuzz with clang's libFuzzer; without it the same targets only replay their corpora" OFF)
if(BANYAN_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES Clang)
        message(FATAL_ERROR "BANYAN_FUZZ needs clang with its compiler-rt: deploy/install-deps.sh --dev, then cmake --preset fuzz")
    endif()
    if(BANYAN_SANITIZE) # counts edges; main comes with the targets' own -fsanitize=fuzzer
        add_compile_options(-fsanitize=fuzzer-no-link)
    endif()
endif()

# banyan_library(NAME SOURCES ... [LIBS ...]): static library banyan_NAME; includes are "folder/file.h" from the root.
function(banyan_library name)
    cmake_parse_arguments(A "" "" "SOURCES;LIBS" ${ARGN})
    add_library(banyan_${name} STATIC ${A_SOURCES})
    target_include_directories(banyan_${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
    target_link_libraries(banyan_${name} PUBLIC ${A_LIBS})
endfunction()

# A hundred and forty test programs: lld links each in a quarter of the time. (mold 1.10 is as quick, but loops for ever
# over some sets of strings, and places RELRO wrongly over some layouts.)
if(NOT CMAKE_CROSSCOMPILING)
    find_program(BANYAN_LLD ld.lld)
endif()

add_custom_target(tests_threads) # all programs of tests with the label threads, and what these start

# banyan_test(NAME SOURCES ... LIBS ... [LABELS ...] [ARGS ...] [TIMEOUT s]): a cmocka program known to CTest.
# Labels: tests/README.md.
function(banyan_test name)
    cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;LIBS;LABELS;ARGS" ${ARGN})
    add_executable(${name} ${A_SOURCES})
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
    target_link_libraries(${name} PRIVATE ${A_LIBS} PkgConfig::CMOCKA m)
    add_test(NAME ${name} COMMAND ${name} ${A_ARGS} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    if(BANYAN_LLD)
        target_link_options(${name} PRIVATE -fuse-ld=lld)
    endif()
    if("threads" IN_LIST A_LABELS)
        add_dependencies(tests_threads ${name})
    endif()
    if(NOT A_TIMEOUT OR A_TIMEOUT LESS 600) # a limit ends what hangs: a busy machine takes ten times as long as a quiet one
        set(A_TIMEOUT 600)
    endif()
    if(BANYAN_SANITIZE)
        math(EXPR A_TIMEOUT "${A_TIMEOUT} * 5")
    endif()
    if(CMAKE_CROSSCOMPILING) # tests run under an emulator
        math(EXPR A_TIMEOUT "${A_TIMEOUT} * 10")
    endif()
    set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}"
        ENVIRONMENT "BANYAN_SOURCE_DIR=${CMAKE_SOURCE_DIR};BANYAN_BUILD_DIR=${CMAKE_BINARY_DIR}")
endfunction()

# banyan_fibers(TEST...): tests that run emulated devices. With the address sanitizer's shadow stacks a fiber costs a thousand
# times what it does without.
function(banyan_fibers)
    if(BANYAN_SANITIZE MATCHES address)
        set_property(TEST ${ARGN} APPEND PROPERTY ENVIRONMENT
            "ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0:strict_string_checks=1")
    endif()
endfunction()
