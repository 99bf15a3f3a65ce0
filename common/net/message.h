/* A message between agents: a header of plain numbers and any number of raw tensor frames.
 *
 * Headers are enough for a parameter server: who, which step, which parameter or bucket, which elements
 * of it. What the numbers mean is the engine's; the transport fills in and checks `sender`, `sequence`,
 * `token`, `frames` and `checksum`. */
#ifndef COMMON_NET_MESSAGE_H
#define COMMON_NET_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

/* name, name in messages */
#define MESSAGE_KIND_LIST(X)                                                                                 \
    X(NONE, "none")                                                                                          \
    X(HEARTBEAT, "heartbeat") /* I live: no frames, may come at any time, may be ignored */                  \
    X(BYE, "bye")             /* orderly end of a link; the transport's own */                               \
    X(PUSH, "push")           /* gradients to a server */                                                    \
    X(PULL, "pull")           /* request for parameters */                                                   \
    X(PUSH_PULL, "push_pull")                                                                                \
    X(PARAMETERS, "parameters") /* answer to a pull */                                                       \
    X(ACKNOWLEDGE, "acknowledge")                                                                            \
    X(BUFFERS, "buffers")                                                                                    \
    X(INPUTS, "inputs")                                                                                      \
    X(OUTPUTS, "outputs")                                                                                    \
    X(OUTPUT_GRADIENT, "output_gradient")                                                                    \
    X(SUM, "sum") /* of a few numbers over the ranks */                                                      \
    X(CONTROL, "control")                                                                                    \
    X(FAILED, "failed") /* the sender gives up; its reason is in the status table */                         \
    X(INPUT_GRADIENT, "input_gradient")

#define MESSAGE_KIND_ENUM(name, text) MESSAGE_##name,
typedef enum message_kind { MESSAGE_KIND_LIST(MESSAGE_KIND_ENUM) MESSAGE_KIND_COUNT } message_kind;
#undef MESSAGE_KIND_ENUM

const char *message_kind_name(message_kind kind);

enum { MESSAGE_FRAMES_MAX = 1024 };

typedef struct message_header {
    message_kind kind;
    int sender;            /* filled in by the transport */
    uint64_t sequence;     /* filled in: from 0 on each direction of each link */
    uint64_t token;        /* filled in: of the job */
    int frames;            /* filled in */
    int64_t step, key;     /* key: parameter, bucket or shard */
    int64_t offset, count; /* elements */
    int dtype;             /* common/ops/tensor.h */
    uint32_t flags;
    int64_t integers[3];
    double doubles[2];
    int64_t sent_ns;    /* when it was handed to the transport; with ps these five travel on rank 0's clock */
    int64_t ready_ns;   /* when its sender had computed it; of a reply: the last contribution's sender; 0: not
                           known */
    int64_t arrived_ns; /* of a reply: when the request arrived, */
    int64_t last_ns; /* and when the last contribution that the reply needed was sent; 0: none was needed */
    uint32_t last_rank; /* by which rank */
    int64_t
        pushed_ns; /* and when the receiver's own last push arrived, where that did not request the reply */
    uint64_t checksum; /* filled in: message_digest() over header and frames; 0 where switched off */
} message_header;

/* Raw bytes that follow a header. Whoever sends them owns them. */
typedef struct message_frame {
    const void *data;
    size_t bytes;
} message_frame;

#endif
