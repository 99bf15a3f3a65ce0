/* Vectors of the instruction set for which a file is compiled: VF floats, or VD doubles.
 *
 * Kernels are written once, for whole vectors. The last, incomplete vector of a row or array uses the same
 * instructions (vf_load_part fills it with zeros), so that the result of an element does not depend on where
 * an array was split. Fused multiply-adds are explicit (vf_fma). Baseline x86-64 has no fused multiply-add,
 * so there vf_fma rounds twice. */
#ifndef COMMON_DEVICE_CPU_ISA_VECTOR_H
#define COMMON_DEVICE_CPU_ISA_VECTOR_H

#include "common/device/cpu/isa/isa.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#define VF_FUSES 1
#endif

#if defined(__AVX512F__)
#define VF 16
#elif defined(__AVX2__)
#define VF 8
#else
#define VF 4
#endif
#define VD (VF / 2)

/* Names symbols that are compiled once per instruction set: KERNEL(cpu_pool) is cpu_pool_avx512 if KERNEL_ISA
 * is avx512. */
#define KERNEL_PASTE(name, isa) name##_##isa
#define KERNEL_EXPAND(name, isa) KERNEL_PASTE(name, isa)
#define KERNEL(name) KERNEL_EXPAND(name, KERNEL_ISA)

typedef float vf __attribute__((vector_size(4 * VF)));
typedef int32_t vi __attribute__((vector_size(4 * VF)));
typedef double vd __attribute__((vector_size(4 * VF)));
typedef int64_t vl __attribute__((vector_size(4 * VF)));
typedef float vf_unaligned __attribute__((vector_size(4 * VF), aligned(4), may_alias));
typedef double vd_unaligned __attribute__((vector_size(4 * VF), aligned(8), may_alias));

/* A mask with one bit per lane if VF is 16. Otherwise a mask has one int per lane, which is 0 or has all bits
 * set. */
#if VF == 16
typedef __mmask16 vmask;
#else
typedef vi vmask;
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* ---- memory ----------------------------------------------------------------------------------- */

ALWAYS_INLINE vf vf_set(float a)
{
    return a - (vf){0};
}

ALWAYS_INLINE vi vi_set(int32_t a)
{
    return a - (vi){0};
}

ALWAYS_INLINE vd vd_set(double a)
{
    return a - (vd){0};
}

ALWAYS_INLINE vf vf_load(const float *p)
{
    return *(const vf_unaligned *)p;
}

ALWAYS_INLINE void vf_store(float *p, vf a)
{
    *(vf_unaligned *)p = a;
}

ALWAYS_INLINE vd vd_load(const double *p)
{
    return *(const vd_unaligned *)p;
}

ALWAYS_INLINE void vd_store(double *p, vd a)
{
    *(vd_unaligned *)p = a;
}

/* Returns the vector 0, 1, 2, ... */
ALWAYS_INLINE vi vi_lanes(void)
{
#if VF == 16
    return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif VF == 8
    return (vi){0, 1, 2, 3, 4, 5, 6, 7};
#else
    return (vi){0, 1, 2, 3};
#endif
}

/* Loads `count` floats, 0 < count <= VF, followed by zeros. Does not access memory after the `count`
 * floats. */
ALWAYS_INLINE vf vf_load_part(const float *p, int64_t count)
{
#if VF == 16
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), p);
#elif VF == 8
    return (vf)_mm256_maskload_ps(p, (__m256i)(vi_lanes() < (int32_t)count));
#else
    vf a = {0};
    memcpy(&a, p, (size_t)count * sizeof *p);
    return a;
#endif
}

ALWAYS_INLINE void vf_store_part(float *p, vf a, int64_t count)
{
#if VF == 16
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << count) - 1), (__m512)a);
#elif VF == 8
    _mm256_maskstore_ps(p, (__m256i)(vi_lanes() < (int32_t)count), (__m256)a);
#else
    memcpy(p, &a, (size_t)count * sizeof *p);
#endif
}

/* Load and store the first min(count, VF) floats. If count is the constant VF, the functions compile to a
 * plain load and store. */
ALWAYS_INLINE vf vf_load_some(const float *p, int64_t count)
{
    return count >= VF ? vf_load(p) : vf_load_part(p, count);
}

ALWAYS_INLINE void vf_store_some(float *p, vf a, int64_t count)
{
    if (count >= VF)
        vf_store(p, a);
    else
        vf_store_part(p, a, count);
}

ALWAYS_INLINE vi vi_load_bytes(const uint8_t *p)
{
#if VF == 16
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
#elif VF == 8
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    return (vi){p[0], p[1], p[2], p[3]};
#endif
}

ALWAYS_INLINE void vi_store_bytes(uint8_t *p, vi a)
{
#if VF == 16
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)a));
#elif VF == 8
    __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128((__m256i)a), _mm256_extracti128_si256((__m256i)a, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
#else
    for (int i = 0; i < VF; i++) p[i] = (uint8_t)a[i];
#endif
}

ALWAYS_INLINE vi vi_load_some_bytes(const uint8_t *p, int64_t count)
{
    if (count >= VF) return vi_load_bytes(p);
#if VF == 16
    return (vi)_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8((__mmask16)((1u << count) - 1), p));
#else
    uint8_t bytes[VF] = {0};
    for (int64_t i = 0; i < count; i++) bytes[i] = p[i];
    return vi_load_bytes(bytes);
#endif
}

ALWAYS_INLINE void vi_store_some_bytes(uint8_t *p, vi a, int64_t count)
{
    if (count >= VF) {
        vi_store_bytes(p, a);
        return;
    }
#if VF == 16
    _mm_mask_storeu_epi8(p, (__mmask16)((1u << count) - 1), _mm512_cvtepi32_epi8((__m512i)a));
#else
    uint8_t bytes[VF];
    vi_store_bytes(bytes, a);
    for (int64_t i = 0; i < count; i++) p[i] = bytes[i];
#endif
}

/* ---- arithmetic ------------------------------------------------------------------------------- */

ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c)
{
#if VF == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VF == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

ALWAYS_INLINE vd vd_fma(vd a, vd b, vd c)
{
#if VF == 16
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif VF == 8
    return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__ARM_NEON)
    return (vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
}

ALWAYS_INLINE vf vf_sqrt(vf a)
{
#if VF == 16
    return (vf)_mm512_sqrt_ps((__m512)a);
#elif VF == 8
    return (vf)_mm256_sqrt_ps((__m256)a);
#elif defined(__SSE2__)
    return (vf)_mm_sqrt_ps((__m128)a);
#else
    return (vf)vsqrtq_f32((float32x4_t)a);
#endif
}

ALWAYS_INLINE vf vf_abs(vf a)
{
    return (vf)((vi)a & 0x7fffffff);
}

/* ---- comparison ------------------------------------------------------------------------------- */

ALWAYS_INLINE vmask vf_greater(vf a, vf b)
{
#if VF == 16
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ);
#else
    return a > b;
#endif
}

ALWAYS_INLINE vmask vf_not_a_number(vf a)
{
#if VF == 16
    return _mm512_cmp_ps_mask((__m512)a, (__m512)a, _CMP_UNORD_Q);
#else
    return a != a;
#endif
}

ALWAYS_INLINE vmask vf_first_lanes(int64_t count)
{
#if VF == 16
    return count >= VF ? (vmask)0xffff : (vmask)((1u << count) - 1);
#else
    return vi_lanes() < (int32_t)(count < VF ? count : VF);
#endif
}

ALWAYS_INLINE vmask vi_equal(vi a, vi b)
{
#if VF == 16
    return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b);
#else
    return a == b;
#endif
}

ALWAYS_INLINE vi vi_select(vmask m, vi a, vi b)
{
#if VF == 16
    return (vi)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a);
#elif VF == 8
    return (vi)_mm256_blendv_epi8((__m256i)b, (__m256i)a, (__m256i)m);
#else
    return (m & a) | (~m & b);
#endif
}

/* Returns m ? a : b in each lane. */
ALWAYS_INLINE vf vf_select(vmask m, vf a, vf b)
{
    return (vf)vi_select(m, (vi)a, (vi)b);
}

/* Returns the larger value, or b if either is NaN. */
ALWAYS_INLINE vf vf_max(vf a, vf b)
{
#if VF == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VF == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return vf_select(vf_greater(a, b), a, b);
#endif
}

/* Returns the smaller value, or b if either is NaN. */
ALWAYS_INLINE vf vf_min(vf a, vf b)
{
#if VF == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif VF == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vf)_mm_min_ps((__m128)a, (__m128)b);
#else
    return vf_select(vf_greater(b, a), a, b);
#endif
}

/* ---- between float and double, and across lanes ----------------------------------------------- */

ALWAYS_INLINE vd vf_low(vf a)
{
#if VF == 16
    return (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)a));
#elif VF == 8
    return (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)a));
#elif defined(__ARM_NEON)
    return (vd)vcvt_f64_f32(vget_low_f32((float32x4_t)a));
#else
    return (vd){a[0], a[1]};
#endif
}

ALWAYS_INLINE vd vf_high(vf a)
{
#if VF == 16
    return (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)a, 1));
#elif VF == 8
    return (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)a, 1));
#elif defined(__ARM_NEON)
    return (vd)vcvt_high_f64_f32((float32x4_t)a);
#else
    return (vd){a[2], a[3]};
#endif
}

/* Returns the sum of the n lanes. Adds lane i + n/2 to lane i, then halves n, and so on. */
ALWAYS_INLINE double vd_sum(vd a)
{
#if VF == 16
    a += __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3);
    a += __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5);
    a += __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6);
#elif VF == 8
    a += __builtin_shufflevector(a, a, 2, 3, 0, 1);
    a += __builtin_shufflevector(a, a, 1, 0, 3, 2);
#else
    a += __builtin_shufflevector(a, a, 1, 0);
#endif
    return a[0];
}

ALWAYS_INLINE double vf_sum(vf a)
{
    return vd_sum(vf_low(a) + vf_high(a));
}

ALWAYS_INLINE float vf_largest(vf a)
{
#if VF == 16
    a = vf_max(a, __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    a = vf_max(a, __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    a = vf_max(a, __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    a = vf_max(a, __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
#elif VF == 8
    a = vf_max(a, __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3));
    a = vf_max(a, __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5));
    a = vf_max(a, __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6));
#else
    a = vf_max(a, __builtin_shufflevector(a, a, 2, 3, 0, 1));
    a = vf_max(a, __builtin_shufflevector(a, a, 1, 0, 3, 2));
#endif
    return a[0];
}

ALWAYS_INLINE int vi_any(vi a)
{
    vl pairs = (vl)a;
    int64_t bits = 0;
    for (int i = 0; i < VD; i++) bits |= pairs[i];
    return bits != 0;
}

#endif
