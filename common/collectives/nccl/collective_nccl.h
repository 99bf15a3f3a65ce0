/* Functions that engines call before they open a world of NCCL. */
#ifndef COMMON_COLLECTIVES_NCCL_COLLECTIVE_NCCL_H
#define COMMON_COLLECTIVES_NCCL_COLLECTIVE_NCCL_H

#include "common/base/status.h"
#include "common/base/text.h"

#include <stdbool.h>
#include <stddef.h>

enum { COLLECTIVE_BOOTSTRAP_BYTES = 128 };

/* Returns true if this process can use NCCL. `text` receives the version, or the reason why not. */
bool collective_nccl_found(char *text, size_t size);

/* Makes the id of a world. Rank 0 calls this function and distributes the id. Every rank passes the id as
 * collective_config.bootstrap. */
status collective_nccl_bootstrap(char out[COLLECTIVE_BOOTSTRAP_BYTES]);

/* For handshakes, collective_bootstrap_write() converts an id to hexadecimal digits, and
 * collective_bootstrap_read() converts the digits back. Reading returns false if `hex` does not begin with an
 * id. */
void collective_bootstrap_write(const char bootstrap[COLLECTIVE_BOOTSTRAP_BYTES], text_buffer *out);
bool collective_bootstrap_read(const char *hex, char out[COLLECTIVE_BOOTSTRAP_BYTES]);

#endif
