/* The communication hooks, choices of --comm-hook: HOOK(NAME, name, type in which gradients are sent and
 * summed (DTYPE_COUNT: their own), function that changes a bucket before it is sent). This file is included
 * where HOOK says what becomes of a row. */
HOOK(NONE, "none", DTYPE_COUNT, ring_send_as_packed)
HOOK(FP16, "fp16", DTYPE_F16, ring_send_as_packed)
HOOK(BF16, "bf16", DTYPE_BF16, ring_send_as_packed)
HOOK(POWERSGD, "powersgd", DTYPE_F32,
     ring_send_as_packed) /* its factors: powersgd.h, ring/engine/ring_powersgd.c */
