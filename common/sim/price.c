#include "common/sim/price.h"

#include <math.h>
#include <stdbool.h>

static bool is_3x3(const op_desc *op)
{
    const conv2d_attributes *a = &op->u.conv2d;
    return op_class_of(op->kind) == OP_CLASS_CONVOLUTION && a->r == 3 && a->s == 3 && a->stride == 1;
}

sim_constant sim_efficiency_of(const op_desc *op)
{
    static const sim_constant by_class[OP_CLASS_COUNT] = {[OP_CLASS_CONVOLUTION] = SIM_CONVOLUTION_BACKWARD,
                                                          [OP_CLASS_GEMM] = SIM_GEMM_BACKWARD,
                                                          [OP_CLASS_ATTENTION] = SIM_ATTENTION,
                                                          [OP_CLASS_NORMALIZATION] = SIM_NORMALIZATION,
                                                          [OP_CLASS_ELEMENTWISE] = SIM_ELEMENTWISE,
                                                          [OP_CLASS_POOLING] = SIM_POOLING,
                                                          [OP_CLASS_EMBEDDING] = SIM_EMBEDDING,
                                                          [OP_CLASS_LOSS] = SIM_LOSS,
                                                          [OP_CLASS_OPTIMIZER] = SIM_OPTIMIZER};
    if (is_3x3(op))
        return op->kind == OP_conv2d_forward ? SIM_CONVOLUTION_3X3_FORWARD : SIM_CONVOLUTION_3X3_BACKWARD;
    if (op->kind == OP_conv2d_forward) return SIM_CONVOLUTION_FORWARD;
    if (op->kind == OP_linear_forward) return SIM_GEMM_FORWARD;
    return by_class[op_class_of(op->kind)];
}

double sim_weight_bytes(const op_desc *op)
{
    const conv2d_attributes *a = &op->u.conv2d;
    if (op_class_of(op->kind) != OP_CLASS_CONVOLUTION || is_3x3(op)) return 0;
    return (double)sizeof(float) * (double)(a->k * a->r * a->s * a->c);
}

static sim_constant efficiency_in(const sim_profile *p, const op_desc *op)
{
    sim_constant own = sim_efficiency_of(op);
    if (sim_profile_has(p, own)) return own;
    /* If the profile has no separate constant, the constant of all other convolutions applies, which every
     * profile contains. */
    return own == SIM_CONVOLUTION_3X3_FORWARD ? SIM_CONVOLUTION_FORWARD : SIM_CONVOLUTION_BACKWARD;
}

/* Returns true for operations that are computed as matrix products. These operations run in the chosen
 * precision, and all other operations run in float32. */
static bool is_product(op_kind kind)
{
    op_class c = op_class_of(kind);
    return c == OP_CLASS_CONVOLUTION || c == OP_CLASS_GEMM || c == OP_CLASS_ATTENTION;
}

/* Times in picoseconds. */
typedef struct roofline {
    double arithmetic, traffic, weights;
} roofline;

static roofline roofline_of(const sim_profile *p, sim_precision precision, const op_desc *op)
{
    op_cost cost = op_cost_of(op);
    double moved = cost.bytes_read + cost.bytes_written;
    if (op->kind == OP_divide && sim_profile_has(p, SIM_HOST_PACK))
        return (roofline){.traffic = moved / (sim_profile_get(p, SIM_HOST_PACK) * SIM_GB_PER_S)};
    sim_constant efficiency = efficiency_in(p, op);
    static const sim_constant peaks[] = {SIM_PEAK_FP32, SIM_PEAK_TF32, SIM_PEAK_HALF, SIM_PEAK_HALF};
    sim_constant peak = peaks[is_product(op->kind) ? precision : SIM_FP32];
    double flops = sim_profile_get(p, peak) * sim_profile_at(p, efficiency, 0); /* TFLOP/s, or FLOP/ps */
    double bytes = sim_profile_get(p, SIM_MEMORY_BANDWIDTH) * SIM_GB_PER_S * sim_profile_at(p, efficiency, 1);
    roofline out = {cost.flops / flops, moved / bytes, 0};
    if (sim_profile_has(p, SIM_WEIGHT_BANDWIDTH))
        out.weights = sim_weight_bytes(op) / (sim_profile_get(p, SIM_WEIGHT_BANDWIDTH) * SIM_GB_PER_S);
    return out;
}

static double whole(roofline r)
{
    return fmax(r.arithmetic, r.traffic) + r.weights;
}

double sim_price_op(const sim_profile *p, sim_precision precision, const op_desc *op)
{
    const recorded_attributes *r = &op->u.recorded;
    if (op->kind == OP_recorded) return (double)SIM_NS * (double)(r->kernel_ns + r->idle_ns);
    return whole(roofline_of(p, precision, op));
}

sim_parts sim_price_parts(const sim_profile *p, sim_precision precision, const op_desc *op)
{
    if (op->kind == OP_recorded) return (sim_parts){op->u.recorded.arithmetic, op->u.recorded.traffic};
    roofline r = roofline_of(p, precision, op);
    double all = whole(r);
    if (all <= 0) return (sim_parts){0};
    return (sim_parts){(float)(r.arithmetic / all), (float)(r.traffic / all)};
}

double sim_price_rate(sim_load load, sim_parts parts)
{
    double rate = 1;
    if (parts.arithmetic > 0) rate = fmin(rate, fmax(0, 1 - load.sms) / parts.arithmetic);
    if (parts.traffic > 0) rate = fmin(rate, fmax(0, 1 - load.memory) / parts.traffic);
    return fmin(rate, fmax(0, 1 - load.share));
}

sim_load sim_price_collective(const sim_profile *p, int channels, double bus)
{
    enum { MOST_CHANNELS = 32 };
    double blocks = fmin(channels * sim_profile_get(p, SIM_NCCL_BLOCKS), MOST_CHANNELS);
    double sms = sim_profile_has(p, SIM_SMS)
                     ? blocks * sim_profile_get(p, SIM_BLOCK_SMS) / sim_profile_get(p, SIM_SMS)
                     : 0;
    double bandwidth = sim_profile_get(p, SIM_MEMORY_BANDWIDTH) * SIM_GB_PER_S;
    double traffic = isfinite(bus) ? sim_profile_get(p, SIM_COLLECTIVE_TRAFFIC) * bus / bandwidth : 0;
    double share = sim_profile_has(p, SIM_COLLECTIVE_SHARE) ? sim_profile_get(p, SIM_COLLECTIVE_SHARE) : 0;
    return (sim_load){sms, traffic, share};
}

sim_load sim_price_copy_engine(const sim_profile *p, double rate)
{
    return (sim_load){.memory = rate / (sim_profile_get(p, SIM_MEMORY_BANDWIDTH) * SIM_GB_PER_S)};
}

int sim_contention_of(op_kind kind)
{
    return op_class_of(kind) == OP_CLASS_CONVOLUTION ? 0 : is_product(kind) ? 1 : 2;
}

static double contention(const sim_profile *p, int class)
{
    return sim_profile_has(p, SIM_CONTENTION) ? sim_profile_at(p, SIM_CONTENTION, class)
                                              : sim_profile_get(p, SIM_KAPPA);
}

double sim_price_contention(const sim_profile *p, const op_desc *op)
{
    const recorded_attributes *r = &op->u.recorded;
    if (op->kind != OP_recorded) return contention(p, sim_contention_of(op->kind));
    if (r->ranks > 1 || r->kernel_ns == 0) return 1; /* The time of several ranks includes it. */
    double slower = r->arithmetic * contention(p, 1) + (1 - r->arithmetic) * contention(p, 2);
    return 1 + (slower - 1) * (double)r->kernel_ns / (double)(r->kernel_ns + r->idle_ns);
}

double sim_price_core_share(const sim_profile *p, int ranks, double *crowding)
{
    *crowding = 1;
    if (!sim_profile_has(p, SIM_HOST_CORES)) return 0;
    double threads = sim_profile_has(p, SIM_RANK_THREADS) ? sim_profile_get(p, SIM_RANK_THREADS) : 1;
    double left = sim_profile_get(p, SIM_HOST_CORES) - ranks * threads;
    if (left < 0) *crowding = ranks * threads / sim_profile_get(p, SIM_HOST_CORES);
    /* If threads are bound to processors, they cannot move to a less crowded processor, so the factor is
     * rounded up. */
    if (sim_profile_has(p, SIM_RANK_PROCESSORS)) {
        *crowding = ceil(*crowding);
        return sim_profile_get(p, SIM_RANK_PROCESSORS) > threads && left >= 0 ? 0 : 1;
    }
    return left < 0 ? 1 : left >= ranks ? 0 : 1 - left / ranks;
}

sim_time sim_price_sum(const sim_profile *p, double bytes, int threads)
{
    double most = sim_profile_get(p, SIM_HOST_MEMORY), each = sim_profile_get(p, SIM_HOST_SUM);
    double count = threads;
    if (sim_profile_has(p, SIM_HOST_CORES)) count = fmin(count, sim_profile_get(p, SIM_HOST_CORES));
    double rate = each * count;
    return sim_duration(bytes, (rate < most ? rate : most) * SIM_GB_PER_S);
}

sim_loader_price sim_price_loader(const sim_profile *p, double samples, double bytes, int workers,
                                  double rate)
{
    double decode = rate > 0 ? rate : sim_profile_get(p, SIM_LOADER_DECODE);
    double collate = sim_profile_get(p, SIM_LOADER_COLLATE) * SIM_GB_PER_S;
    sim_loader_price out = {.decode = (sim_time)llround(samples / (decode * workers) * 1e12),
                            .collate = rate > 0 ? 0 : sim_duration(bytes / workers, collate),
                            .pin = sim_duration(bytes, sim_profile_get(p, SIM_LOADER_PIN) * SIM_GB_PER_S)};
    out.workers_time = out.decode + out.collate;
    return out;
}

sim_time sim_price_copy(const sim_profile *p, double bytes)
{
    if (!sim_profile_has(p, SIM_HOST_COPY)) return 0;
    return sim_duration(bytes, sim_profile_get(p, SIM_HOST_COPY) * SIM_GB_PER_S);
}

sim_time sim_price_message(const sim_profile *p, double bytes)
{
    return sim_from_us(sim_profile_get(p, SIM_MESSAGE_TIME)) +
           sim_duration(bytes, sim_profile_get(p, SIM_MESSAGE_COPY) * SIM_GB_PER_S);
}
