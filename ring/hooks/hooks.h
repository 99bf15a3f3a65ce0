/* The communication hooks, which are the choices of --comm-hook: HOOK(NAME, name, type, function). The type
 * is that in which gradients are sent and summed, or DTYPE_COUNT for the gradients' type. The function
 * changes a bucket before it is sent. A file that includes this one defines HOOK first. */
HOOK(NONE, "none", DTYPE_COUNT, ring_send_as_packed)
HOOK(FP16, "fp16", DTYPE_F16, ring_send_as_packed)
HOOK(BF16, "bf16", DTYPE_BF16, ring_send_as_packed)
HOOK(POWERSGD, "powersgd", DTYPE_F32,
     ring_send_as_packed) /* factors: powersgd.h, ring/engine/ring_powersgd.c */
