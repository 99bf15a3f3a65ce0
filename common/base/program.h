/* Where the running program lies: what belongs to it is looked for next to it, so that an installation or a
 * packed copy may be moved. */
#ifndef COMMON_BASE_PROGRAM_H
#define COMMON_BASE_PROGRAM_H

#include <limits.h>

/* The folder of the running program; "" where /proc does not tell. */
void program_folder(char out[PATH_MAX]);

#endif
