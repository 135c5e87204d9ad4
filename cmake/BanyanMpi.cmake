# SPDX-License-Identifier: Apache-2.0
# Finds Open MPI for banyan-mpi.so: a machine without it configures, builds and tests the rest.
set(BANYAN_MPI AUTO CACHE STRING "banyan-mpi.so: AUTO (where Open MPI is), ON (required) or OFF")
set_property(CACHE BANYAN_MPI PROPERTY STRINGS AUTO ON OFF)

set(BANYAN_MPI_WHY_NOT "")
if(NOT BANYAN_MPI)
    set(BANYAN_MPI_WHY_NOT "BANYAN_MPI is OFF")
elseif(CMAKE_CROSSCOMPILING)
    set(BANYAN_MPI_WHY_NOT "this is a cross build")
else()
    pkg_check_modules(OMPI IMPORTED_TARGET ompi-c) # libopenmpi-dev
    find_program(BANYAN_MPIRUN mpirun)             # openmpi-bin
    if(NOT OMPI_FOUND)
        set(BANYAN_MPI_WHY_NOT "Open MPI was not found")
    elseif(NOT BANYAN_MPIRUN)
        set(BANYAN_MPI_WHY_NOT "mpirun was not found")
    endif()
    if(BANYAN_MPI_WHY_NOT AND BANYAN_MPI STREQUAL ON)
        message(FATAL_ERROR "BANYAN_MPI is ON and ${BANYAN_MPI_WHY_NOT}: apt-get install libopenmpi-dev openmpi-bin")
    endif()
endif()
if(BANYAN_MPI_WHY_NOT)
    message(STATUS "banyan-mpi.so is not built: ${BANYAN_MPI_WHY_NOT}")
else()
    message(STATUS "banyan-mpi.so: Open MPI ${OMPI_VERSION}, ${BANYAN_MPIRUN}")
endif()
