/* Locates the running program. The program searches for its files next to the executable, so an installation
 * can be moved. */
#ifndef COMMON_BASE_PROGRAM_H
#define COMMON_BASE_PROGRAM_H

#include <limits.h>

/* Writes the folder of the running program, or "" if /proc does not say. */
void program_folder(char out[PATH_MAX]);

#endif
