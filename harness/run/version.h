/* The program's version, from the build, and that of the JSON that it writes. */
#ifndef HARNESS_RUN_VERSION_H
#define HARNESS_RUN_VERSION_H

#ifndef PROGRAM_VERSION
#error "PROGRAM_VERSION comes from CMakeLists.txt"
#endif

enum { RESULT_SCHEMA_VERSION = 2 }; /* docs/results.md */

#endif
