/* Finds the folder of the running program. The program searches for other files relative to this folder, so
 * an installation can be moved. */
#ifndef COMMON_BASE_PROGRAM_H
#define COMMON_BASE_PROGRAM_H

#include <limits.h>

/* Writes the path of the folder that contains the running program. Writes "" if /proc does not show this
 * path. */
void program_folder(char out[PATH_MAX]);

#endif
