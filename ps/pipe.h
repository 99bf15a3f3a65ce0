/* Messages between a worker and the server in its process: two agents of one process. One writer, one reader,
 * no lock, fixed size. A message is a header and at most one frame, which is the writer's memory. */
#ifndef PS_PIPE_H
#define PS_PIPE_H

#include "common/base/status.h"
#include "common/net/message.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct ps_pipe_entry {
    message_header header;
    message_frame frame; /* data NULL: none */
} ps_pipe_entry;

typedef struct ps_pipe {
    ps_pipe_entry *entries;
    uint32_t capacity; /* a power of two */
    _Alignas(64) _Atomic uint32_t head; /* next to be read; moved by the reader */
    _Alignas(64) _Atomic uint32_t tail; /* next to be written; moved by the writer */
} ps_pipe;

/* Room for at least `capacity` messages that were not read yet. */
status ps_pipe_init(ps_pipe *p, uint32_t capacity);
void ps_pipe_deinit(ps_pipe *p);

/* False if it is full. */
bool ps_pipe_put(ps_pipe *p, const message_header *header, message_frame frame);
/* The oldest message, or NULL. It stays in place until ps_pipe_drop(). */
const ps_pipe_entry *ps_pipe_peek(const ps_pipe *p);
void ps_pipe_drop(ps_pipe *p);

#endif
