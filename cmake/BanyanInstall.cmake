# SPDX-License-Identifier: Apache-2.0
# cmake --install BUILD [--prefix PREFIX] [--component runtime|development|modules]
#
#   runtime       bin/: the three programs and banyan-llama, a script; lib/: libbanyan.so.0; share/: completions for bash, zsh and fish,
#                 manual pages (docs/man), banyan/: alerts and an example for Prometheus, a dashboard for Grafana
#                 doc/banyan/docs/: the guides that help texts and alerts name
#   development   include/banyan.h; lib/: libbanyan.so, libbanyan.a, pkg-config's banyan.pc, CMake's banyan::banyan; share/man/man3
#   modules       lib/banyan/: what a worker opens at run time, and llama.cpp's plug-in, as far as they were built
#
# Everything finds the rest by relative paths: a prefix may be moved.
install(TARGETS banyan-coordinator banyan-worker banyanctl COMPONENT runtime)
install(PROGRAMS ${CMAKE_BINARY_DIR}/bin/banyan-llama DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/banyan-coordinator.service ${CMAKE_SOURCE_DIR}/deploy/systemd/banyan-worker@.service
    DESTINATION lib/systemd/system COMPONENT runtime)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/prometheus/alerts.yaml ${CMAKE_SOURCE_DIR}/deploy/prometheus/scrape.yaml
    DESTINATION ${CMAKE_INSTALL_DATADIR}/banyan/prometheus COMPONENT runtime)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/grafana/banyan.json DESTINATION ${CMAKE_INSTALL_DATADIR}/banyan/grafana COMPONENT runtime)
foreach(folder concepts internals operating reference tutorial)
    install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs/${folder} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/banyan/docs COMPONENT runtime)
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/docs/LLAMA.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/banyan/docs COMPONENT runtime)
install(TARGETS banyan EXPORT banyanTargets
    LIBRARY COMPONENT runtime NAMELINK_COMPONENT development
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS banyan_archive ARCHIVE COMPONENT development)
install(FILES ${CMAKE_SOURCE_DIR}/client/banyan.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

# One script a shell for all programs; bash and fish look for one that is named as the program.
set(scripts ${CMAKE_SOURCE_DIR}/client/ctl/completion)
foreach(program banyanctl banyan-coordinator banyan-worker)
    install(FILES ${scripts}/banyanctl.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME ${program}
        COMPONENT runtime)
    install(FILES ${scripts}/banyanctl.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME ${program}.fish
        COMPONENT runtime)
endforeach()
install(FILES ${scripts}/banyanctl.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _banyanctl COMPONENT runtime)

# Modules: MPI's and llama.cpp's are targets, the others are made by nvcc and known by their paths.
foreach(module banyan_mpi ggml-banyan)
    if(TARGET ${module})
        install(TARGETS ${module} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/banyan COMPONENT modules)
    endif()
endforeach()
foreach(name CUDA NCCL)
    get_property(module GLOBAL PROPERTY BANYAN_${name}_MODULE)
    if(module)
        install(PROGRAMS ${module} DESTINATION ${CMAKE_INSTALL_LIBDIR}/banyan COMPONENT modules)
    endif()
endforeach()

# For CMake: find_package(banyan 0.2 REQUIRED), target_link_libraries(... banyan::banyan)
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/banyan)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/install/banyanConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/install/banyanConfig.cmake
    CONTENT "include(\${CMAKE_CURRENT_LIST_DIR}/banyanTargets.cmake)\n" @ONLY)
install(EXPORT banyanTargets NAMESPACE banyan:: DESTINATION ${package} COMPONENT development)
install(FILES ${CMAKE_BINARY_DIR}/install/banyanConfigVersion.cmake ${CMAKE_BINARY_DIR}/install/banyanConfig.cmake
    DESTINATION ${package} COMPONENT development)

# For pkg-config: cc hello.c $(pkg-config --cflags --libs banyan)
file(RELATIVE_PATH to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_SOURCE_DIR}/cmake/banyan.pc.in ${CMAKE_BINARY_DIR}/install/banyan.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/install/banyan.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
