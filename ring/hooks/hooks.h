/* The communication hooks, which are the choices of --comm-hook: HOOK(NAME, name, type, function). Gradients
 * are sent and summed in `type`, or in their own type if `type` is DTYPE_COUNT. `function` changes a bucket
 * before it is sent. A file must define HOOK before it includes this file. */
HOOK(NONE, "none", DTYPE_COUNT, ring_send_as_packed)
HOOK(FP16, "fp16", DTYPE_F16, ring_send_as_packed)
HOOK(BF16, "bf16", DTYPE_BF16, ring_send_as_packed)
HOOK(POWERSGD, "powersgd", DTYPE_F32, ring_send_as_packed) /* Factors are sent: powersgd.h. */
