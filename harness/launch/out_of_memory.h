/* Ends the process if a library does not survive a failed allocation.
 *
 * Our functions check their allocations and return STATUS_SYSTEM. Libraries throw (oneDNN, ZeroMQ), call
 * abort() or exit() (ZeroMQ, libgomp), build an incomplete value (jansson), or crash. If a library fails, the
 * process ends with one line that names memory, and exit code 71. A rank's line goes to the launcher, which
 * prints the line. */
#ifndef HARNESS_LAUNCH_OUT_OF_MEMORY_H
#define HARNESS_LAUNCH_OUT_OF_MEMORY_H

#include "common/net/status_table.h"

/* Installs the handlers. A crash counts as lack of memory only if errno of its thread is ENOMEM. */
void out_of_memory_watch(void);

/* Writes later lines to the slot of `rank` in `table`, or to stderr if `table` is NULL. */
void out_of_memory_report_to(status_table *table, int rank);

#endif
