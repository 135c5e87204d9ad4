# SPDX-License-Identifier: Apache-2.0
# Finds nvcc and compiles .cu files with it, without CMake's CUDA language: a machine without a toolkit configures,
# builds and tests the rest.
set(BANYAN_CUDA AUTO CACHE STRING "banyan-cuda.so: AUTO (where nvcc is), ON (required) or OFF")
set_property(CACHE BANYAN_CUDA PROPERTY STRINGS AUTO ON OFF)
# Machine code for these, PTX of the last for what comes later.
set(BANYAN_CUDA_ARCHITECTURES 80 90 CACHE STRING "Compute capabilities that banyan-cuda.so holds code for")

set(BANYAN_CUDA_WHY_NOT "")
if(NOT BANYAN_CUDA)
    set(BANYAN_CUDA_WHY_NOT "BANYAN_CUDA is OFF")
elseif(BANYAN_SANITIZE)
    set(BANYAN_CUDA_WHY_NOT "sanitizers do not reach it; its kernels run emulated")
else()
    find_program(BANYAN_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
    if(NOT BANYAN_NVCC)
        set(BANYAN_CUDA_WHY_NOT "nvcc was not found")
        if(BANYAN_CUDA STREQUAL ON)
            message(FATAL_ERROR "BANYAN_CUDA is ON and nvcc was not found: set CUDA_HOME")
        endif()
    endif()
endif()
if(BANYAN_CUDA_WHY_NOT)
    message(STATUS "banyan-cuda.so is not built: ${BANYAN_CUDA_WHY_NOT}")
    return()
endif()
get_filename_component(BANYAN_CUDA_BIN ${BANYAN_NVCC} REALPATH)
get_filename_component(BANYAN_CUDA_BIN ${BANYAN_CUDA_BIN} DIRECTORY)
execute_process(COMMAND ${BANYAN_NVCC} --version OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REGEX MATCH "V([0-9.]+)" version "${version}")
set(BANYAN_CUDA_VERSION ${CMAKE_MATCH_1})
get_property(told GLOBAL PROPERTY BANYAN_CUDA_TOLD)
if(NOT told) # several folders include this
    message(STATUS "banyan-cuda.so: nvcc ${BANYAN_CUDA_VERSION}, sm_${BANYAN_CUDA_ARCHITECTURES}")
    set_property(GLOBAL PROPERTY BANYAN_CUDA_TOLD TRUE)
endif()

# banyan_cuda_objects(OUT [ONLY ARCHITECTURE] SOURCES...): compiles .cu files of the current folder; OUT lists the objects.
# What the assembler says of registers and spills lies beside each object, in a .log. ONLY: machine code for this one, as
# 90a, and nothing for other devices.
function(banyan_cuda_objects out)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "ONLY" "")
    set(code "")
    if(arg_ONLY)
        set(code " -gencode arch=compute_${arg_ONLY},code=sm_${arg_ONLY}")
    else()
        foreach(arch ${BANYAN_CUDA_ARCHITECTURES})
            string(APPEND code " -gencode arch=compute_${arch},code=sm_${arch}")
        endforeach()
        list(GET BANYAN_CUDA_ARCHITECTURES -1 last)
        string(APPEND code " -gencode arch=compute_${last},code=compute_${last}")
    endif()
    string(REPLACE ";" " " launcher "${CMAKE_C_COMPILER_LAUNCHER}") # C++ may not be enabled yet
    set(objects "")
    foreach(source ${arg_UNPARSED_ARGUMENTS})
        set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
        # No contraction: the kernels ask for fma by name, so that the emulated ones compute the same
        string(CONCAT command "${launcher} '${BANYAN_NVCC}' -std=c++17 -O3 -fmad=false -Werror all-warnings -Xptxas -v${code}"
            " -I'${CMAKE_SOURCE_DIR}' -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Werror"
            " -MD -MF '${object}.d' -c '${CMAKE_CURRENT_SOURCE_DIR}/${source}' -o '${object}'"
            " >'${object}.log' 2>&1 || (cat '${object}.log' && rm -f '${object}' && false)")
        add_custom_command(OUTPUT ${object} ${object}.log COMMAND sh -c ${command} DEPENDS ${source}
            DEPFILE ${object}.d COMMENT "Building CUDA object ${source}" VERBATIM)
        list(APPEND objects ${object})
    endforeach()
    set(${out} ${objects} PARENT_SCOPE)
endfunction()

# banyan_cuda_module(NAME HOST LINKER OBJECTS...): links banyan-NAME.so, with the runtime in it, from the object library HOST and
# what banyan_cuda_objects made. LINKER: more for the linker, after a comma. Its path is the property BANYAN_NAME_MODULE.
function(banyan_cuda_module name host linker)
    string(TOUPPER ${name} upper)
    set(module ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/banyan-${name}.so)
    add_custom_command(OUTPUT ${module}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}
        COMMAND ${BANYAN_NVCC} -shared -cudart static -Xlinker=--as-needed,--exclude-libs,ALL${linker} -o ${module} ${ARGN}
            $<TARGET_OBJECTS:${host}>
        DEPENDS ${ARGN} $<TARGET_OBJECTS:${host}> COMMAND_EXPAND_LISTS COMMENT "Linking banyan-${name}.so" VERBATIM)
    add_custom_target(banyan_${name} ALL DEPENDS ${module})
    set_property(GLOBAL PROPERTY BANYAN_${upper}_MODULE ${module})
    set(logs ${ARGN})
    list(TRANSFORM logs APPEND .log)
    set_property(GLOBAL APPEND PROPERTY BANYAN_CUDA_LOGS ${logs})
endfunction()
