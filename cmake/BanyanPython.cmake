# SPDX-License-Identifier: Apache-2.0
# What the Python wheel holds beside its Python (client/python/pyproject.toml builds with it):
#
#   _bin/         the daemons and banyanctl, for banyan.local_cluster
#   _lib/         libbanyan.so.0, and banyan.h, from which the package reads its declarations
#
# They use this machine's libraries. client/python/wheel.sh makes of it a wheel for other machines, which carries them.
set_target_properties(banyan PROPERTIES VERSION 0) # one file, as wheels have no links
install(TARGETS banyan-coordinator banyan-worker banyanctl RUNTIME DESTINATION _bin COMPONENT python)
install(TARGETS banyan LIBRARY DESTINATION _lib COMPONENT python NAMELINK_SKIP)
install(FILES ${CMAKE_SOURCE_DIR}/client/banyan.h DESTINATION _lib COMPONENT python)
