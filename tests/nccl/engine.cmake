# SPDX-License-Identifier: Apache-2.0
# The engine `nccl` on the emulated runtime and the emulated NCCL; and, where there are a GPU and NCCL, on these.
get_property(fiber_flags GLOBAL PROPERTY BANYAN_EMULATED_FIBER_FLAGS)
set(engine ${CMAKE_SOURCE_DIR}/reduce/nccl)
add_library(banyan_nccl_fibers OBJECT ${engine}/merge.cu)
set_source_files_properties(${engine}/merge.cu PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
emulated_flags(banyan_nccl_fibers ${fiber_flags})

add_library(banyan_nccl_emulated MODULE ${engine}/comm.c ${engine}/group.c ${engine}/lane.c ${engine}/layout.c
    ${engine}/library.c ${engine}/memory.c ${engine}/module.c $<TARGET_OBJECTS:banyan_nccl_fibers>)
set_target_properties(banyan_nccl_emulated PROPERTIES PREFIX "" OUTPUT_NAME banyan-nccl-emulated LINKER_LANGUAGE CXX
    C_VISIBILITY_PRESET hidden BUILD_RPATH "$ORIGIN")
target_include_directories(banyan_nccl_emulated PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
target_compile_definitions(banyan_nccl_emulated PRIVATE BANYAN_VERSION="${PROJECT_VERSION}")
target_link_libraries(banyan_nccl_emulated PRIVATE banyan_emulated_cudart Threads::Threads ${CMAKE_DL_LIBS})
add_dependencies(banyan_nccl_emulated banyan_proto) # its generated header

add_executable(nccl_conformance test_nccl_conformance.c)
target_include_directories(nccl_conformance PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
target_link_libraries(nccl_conformance PRIVATE tests_reduce_ranks PkgConfig::CMOCKA ${CMAKE_DL_LIBS} m)
set_target_properties(nccl_conformance PROPERTIES ENABLE_EXPORTS ON)
add_executable(nccl_e2e test_nccl_e2e.c)
target_link_libraries(nccl_e2e PRIVATE banyan_e2e_support ${CMAKE_DL_LIBS})
add_dependencies(nccl_e2e banyan-coordinator banyan-worker)

set(environment "BANYAN_SOURCE_DIR=${CMAKE_SOURCE_DIR};BANYAN_BUILD_DIR=${CMAKE_BINARY_DIR}")
set(emulated "BANYAN_NCCL_LIBRARY=$<TARGET_FILE:banyan_emulated_nccl>")
add_dependencies(nccl_conformance banyan_nccl_emulated banyan_emulated_nccl)
add_dependencies(nccl_e2e banyan_nccl_emulated banyan_emulated_nccl banyan_cuda_emulated)
add_test(NAME nccl_conformance COMMAND nccl_conformance $<TARGET_FILE:banyan_nccl_emulated> 7
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(nccl_conformance PROPERTIES TIMEOUT 300 LABELS "unit;threads" ENVIRONMENT "${emulated}")
add_test(NAME nccl_e2e COMMAND nccl_e2e $<TARGET_FILE:banyan_cuda_emulated> $<TARGET_FILE:banyan_nccl_emulated>
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(nccl_e2e PROPERTIES TIMEOUT 300 LABELS "e2e;threads" RUN_SERIAL ON
    ENVIRONMENT "${environment};${emulated}")
banyan_fibers(nccl_conformance nccl_e2e)

get_property(cuda_module GLOBAL PROPERTY BANYAN_CUDA_MODULE)
get_property(nccl_module GLOBAL PROPERTY BANYAN_NCCL_MODULE)
if(TARGET banyan_nccl)
    add_test(NAME nccl_conformance_gpu COMMAND nccl_conformance ${nccl_module} 7 WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    set_tests_properties(nccl_conformance_gpu PROPERTIES TIMEOUT 600 LABELS "unit;gpu" SKIP_RETURN_CODE 77)
    add_test(NAME nccl_e2e_gpu COMMAND nccl_e2e ${cuda_module} ${nccl_module} gpu WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    set_tests_properties(nccl_e2e_gpu PROPERTIES TIMEOUT 600 LABELS "e2e;gpu" SKIP_RETURN_CODE 77 RUN_SERIAL ON
        ENVIRONMENT "${environment};BANYAN_NCCL_SHARE_GPU=1;NCCL_SOCKET_IFNAME=lo;NCCL_IB_DISABLE=1;NCCL_NVLS_ENABLE=0")
endif()
