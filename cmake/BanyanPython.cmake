# SPDX-License-Identifier: Apache-2.0
# What the Python wheel holds beside its Python (client/python/pyproject.toml builds with it):
#
#   _bin/         the daemons and banyanctl, for banyan.local_cluster
#   _lib/         libbanyan.so.0 and every library that it or they need and a system may lack; banyan.h
#
# The wheel runs on any x86-64 or 64-bit ARM Linux with this glibc or a newer one: nothing needs to be installed.
set_target_properties(banyan PROPERTIES VERSION 0) # one file, as wheels have no links
set(programs banyan-coordinator banyan-worker banyanctl)
install(TARGETS ${programs} RUNTIME DESTINATION _bin COMPONENT python)
install(TARGETS banyan LIBRARY DESTINATION _lib COMPONENT python NAMELINK_SKIP)
install(FILES ${CMAKE_SOURCE_DIR}/client/banyan.h DESTINATION _lib COMPONENT python)
# The old form of the tag (RPATH) also counts for what the libraries themselves need.
set_target_properties(banyan PROPERTIES INSTALL_RPATH "$ORIGIN")
set_target_properties(${programs} PROPERTIES INSTALL_RPATH "$ORIGIN/../_lib")
foreach(target banyan ${programs})
    target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
endforeach()
install(CODE [[
    file(GET_RUNTIME_DEPENDENCIES
        LIBRARIES "$<TARGET_FILE:banyan>"
        EXECUTABLES "$<TARGET_FILE:banyan-coordinator>" "$<TARGET_FILE:banyan-worker>" "$<TARGET_FILE:banyanctl>"
        PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\\+\\+)\\.so" "^libbanyan"
        RESOLVED_DEPENDENCIES_VAR needed UNRESOLVED_DEPENDENCIES_VAR missing)
    if(missing)
        message(FATAL_ERROR "not found: ${missing}")
    endif()
    foreach(library ${needed})
        get_filename_component(name "${library}" NAME)
        get_filename_component(real "${library}" REALPATH)
        file(INSTALL "${real}" DESTINATION "${CMAKE_INSTALL_PREFIX}/_lib" RENAME "${name}")
    endforeach()
]] COMPONENT python)
