/* The program's name and version, from the build. */
#ifndef HARNESS_RUN_VERSION_H
#define HARNESS_RUN_VERSION_H

#ifndef PROGRAM_VERSION
#error "PROGRAM_VERSION comes from CMakeLists.txt"
#endif

#endif
