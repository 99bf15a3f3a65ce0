/* NCCL besides the interface of collectives: what engines need before they open a world. */
#ifndef COMMON_COLLECTIVES_NCCL_COLLECTIVE_NCCL_H
#define COMMON_COLLECTIVES_NCCL_COLLECTIVE_NCCL_H

#include "common/base/status.h"
#include "common/base/text.h"

#include <stdbool.h>
#include <stddef.h>

enum { COLLECTIVE_BOOTSTRAP_BYTES = 128 };

/* NCCL can be opened in this process; never fails. `text` gets its version, or what is missing. */
bool collective_nccl_found(char *text, size_t size);

/* Made by rank 0; every rank passes it to collective_config.bootstrap. */
status collective_nccl_bootstrap(char out[COLLECTIVE_BOOTSTRAP_BYTES]);

/* The same as hexadecimal digits, for handshakes; false where `hex` does not begin with one. */
void collective_bootstrap_write(const char bootstrap[COLLECTIVE_BOOTSTRAP_BYTES], text_buffer *out);
bool collective_bootstrap_read(const char *hex, char out[COLLECTIVE_BOOTSTRAP_BYTES]);

#endif
