/* Tensor bytes, which do not exist on the virtual device: there they are not touched, and what would be done
 * with them takes time. */
#ifndef PS_BYTES_H
#define PS_BYTES_H

#include "common/device/device.h"

bool ps_bytes_exist(const device *d);

/* memcpy, where the bytes exist; on virtual devices whoever acts spends its time. */
void ps_move(device *d, void *to, const void *from, size_t bytes);

/* Virtual devices: who acts spends the time of reading `bytes` by so many of the host's threads, 0: by the
 * device itself. Elsewhere nothing. */
void ps_spend_pass(device *d, double bytes, int threads);

/* Virtual devices: so many host threads launch under one interpreter's lock from now on. */
void ps_share_interpreter(device *d, int threads);

#endif
