/* The tensor-noise stream of tacit.noise.stream, for CPUs.
 *
 * This file computes exactly what stream.py computes with numpy, bit for bit: ChaCha words, then a Box-Muller transform
 * made only of integer operations and correctly rounded binary32 +, -, *, sqrt. It must therefore be compiled without
 * contraction of a*b+c into fused multiply-add (-ffp-contract=off) and without -ffast-math. See stream.py for the
 * definition of the stream and docs/noise.md for the error bounds of the polynomials.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 32               /* blocks per tile: element (word, lane) of a tile has index word * LANES + lane */
#define WORDS 16               /* 32-bit words per ChaCha block */
#define TILE (LANES * WORDS)   /* elements per tile */
#define PAIRS (WORDS / 2)
#define TAIL_BOUND 65536u      /* a radius word below this takes its remaining bits from the tail stream */

#define ROTATE(x, r) (((x) << (r)) | ((x) >> (32 - (r))))
#define QUARTER(a, b, c, d)                                                                                            \
    a += b; d ^= a; d = ROTATE(d, 16);                                                                                 \
    c += d; b ^= c; b = ROTATE(b, 12);                                                                                 \
    a += b; d ^= a; d = ROTATE(d, 8);                                                                                  \
    c += d; b ^= c; b = ROTATE(b, 7);
#define DOUBLE_ROUND                                                                                                   \
    QUARTER(x0, x4, x8, x12) QUARTER(x1, x5, x9, x13) QUARTER(x2, x6, x10, x14) QUARTER(x3, x7, x11, x15)              \
    QUARTER(x0, x5, x10, x15) QUARTER(x1, x6, x11, x12) QUARTER(x2, x7, x8, x13) QUARTER(x3, x4, x9, x14)

/* Words of blocks first .. first + LANES - 1 of the stream (key, stream), laid out [word][lane]. */
static void chacha_tile(const uint32_t key[8], uint32_t stream, uint64_t first, uint32_t *restrict out) {
    for (int lane = 0; lane < LANES; lane++) {
        /* first is a multiple of LANES, so adding the lane never carries into the high word */
        uint32_t low = (uint32_t)first + (uint32_t)lane, high = (uint32_t)(first >> 32);
        uint32_t x0 = 0x61707865u, x1 = 0x3320646eu, x2 = 0x79622d32u, x3 = 0x6b206574u;
        uint32_t x4 = key[0], x5 = key[1], x6 = key[2], x7 = key[3], x8 = key[4], x9 = key[5], x10 = key[6], x11 = key[7];
        uint32_t x12 = low, x13 = high, x14 = stream, x15 = 0;
        DOUBLE_ROUND DOUBLE_ROUND DOUBLE_ROUND DOUBLE_ROUND
#if ROUNDS >= 12
        DOUBLE_ROUND DOUBLE_ROUND
#endif
#if ROUNDS >= 20
        DOUBLE_ROUND DOUBLE_ROUND DOUBLE_ROUND DOUBLE_ROUND
#endif
        out[0 * LANES + lane] = x0 + 0x61707865u;
        out[1 * LANES + lane] = x1 + 0x3320646eu;
        out[2 * LANES + lane] = x2 + 0x79622d32u;
        out[3 * LANES + lane] = x3 + 0x6b206574u;
        out[4 * LANES + lane] = x4 + key[0];
        out[5 * LANES + lane] = x5 + key[1];
        out[6 * LANES + lane] = x6 + key[2];
        out[7 * LANES + lane] = x7 + key[3];
        out[8 * LANES + lane] = x8 + key[4];
        out[9 * LANES + lane] = x9 + key[5];
        out[10 * LANES + lane] = x10 + key[6];
        out[11 * LANES + lane] = x11 + key[7];
        out[12 * LANES + lane] = x12 + low;
        out[13 * LANES + lane] = x13 + high;
        out[14 * LANES + lane] = x14 + stream;
        out[15 * LANES + lane] = x15;
    }
}

static inline float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

/* sqrt(-2 ln u) for u = t * 2^-digits. */
static inline float radius(uint32_t t, int32_t digits) {
    uint32_t half = t >> 1;
    uint32_t bits = as_bits((float)(int32_t)(half | (half == 0)));
    int32_t exponent = (int32_t)((bits + 0x00555555u) >> 23) - 127; /* 2^(exponent + 1) is the power of two nearest t */
    int32_t difference = (int32_t)(t - (2u << exponent));
    float f = (float)difference * as_float((uint32_t)(126 - exponent) << 23);
    float p = -0.27496618032455444f;
    p = p * f + 0.30788543820381165f;
    p = p * f + -0.281116247177124f;
    p = p * f + 0.3282904028892517f;
    p = p * f + -0.40014466643333435f;
    p = p * f + 0.5001586079597473f;
    p = p * f + -0.6666654348373413f;
    p = p * f + 0.9999986886978149f;
    p = p * f + -2.0f;
    return sqrtf((float)(digits - 1 - exponent) * 1.3862943649291992f + p * f);
}

static void gauss_pairs(const uint32_t *restrict a, const uint32_t *restrict b, const int32_t *restrict digits,
                        float *restrict first, float *restrict second, int count) {
    for (int i = 0; i < count; i++) {
        float r = radius(a[i] | 1u, digits ? digits[i] : 32);
        float x = (float)(int32_t)((b[i] << 2) | 2u) * 4.656612873077393e-10f; /* 2^-31 */
        float y = x * x;
        float s = ((-3.595429006963968e-05f * y + 0.0024900068528950214f) * y + -0.08074543625116348f) * y + 0.7853981852531433f;
        float c = ((-0.0003188774862792343f * y + 0.01584991067647934f) * y + -0.3084242641925812f) * y + 1.0f;
        uint32_t sine = as_bits(r * (s * x));
        uint32_t cosine = as_bits(r * c) ^ (b[i] & 0x80000000u);
        uint32_t swap = 0u - ((b[i] >> 30) & 1u);
        uint32_t change = (sine ^ cosine) & swap;
        first[i] = as_float(cosine ^ change);
        second[i] = as_float(sine ^ change);
    }
}

static void normal_tile(const uint32_t key[8], uint64_t tile, float *restrict out) {
    uint32_t words[TILE];
    chacha_tile(key, 0, tile * LANES, words);
    uint32_t smallest = 0xffffffffu;
    for (int i = 0; i < PAIRS * LANES; i++) smallest = words[i] < smallest ? words[i] : smallest;
    if (smallest >= TAIL_BOUND) {
        gauss_pairs(words, words + PAIRS * LANES, 0, out, out + PAIRS * LANES, PAIRS * LANES);
        return;
    }
    uint32_t tail[TILE];
    int32_t digits[PAIRS * LANES];
    chacha_tile(key, 1, tile * LANES, tail);
    for (int i = 0; i < PAIRS * LANES; i++) {
        int pair = i / LANES, lane = i % LANES;
        uint32_t high = tail[(2 * pair) * LANES + lane], low = tail[(2 * pair + 1) * LANES + lane], a = words[i];
        digits[i] = 32;
        if (a >= TAIL_BOUND) continue;
        if (a != 0) { words[i] = (a << 16) | (high >> 16); digits[i] = 48; }
        else if (high >= TAIL_BOUND) { words[i] = high; digits[i] = 64; }
        else if (high != 0) { words[i] = (high << 16) | (low >> 16); digits[i] = 80; }
        else { words[i] = low; digits[i] = 96; }
    }
    gauss_pairs(words, words + PAIRS * LANES, digits, out, out + PAIRS * LANES, PAIRS * LANES);
}

/* out[row * out_stride + column] (+)= (scale *) element offset + row * stride + column. */
void tacit_normal(const uint32_t key[8], uint64_t offset, uint64_t rows, uint64_t stride, uint64_t columns, float *out,
                  uint64_t out_stride, int add, float scale) {
    float buffer[TILE];
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t index = offset + row * stride, end = index + columns;
        float *target = out + row * out_stride;
        while (index < end) {
            uint64_t tile = index / TILE, skip = index % TILE;
            uint64_t count = TILE - skip < end - index ? TILE - skip : end - index;
            if (!add && count == TILE) {
                normal_tile(key, tile, target);
            } else {
                normal_tile(key, tile, buffer);
                if (add) for (uint64_t i = 0; i < count; i++) target[i] += scale * buffer[skip + i];
                else memcpy(target, buffer + skip, count * sizeof(float));
            }
            index += count;
            target += count;
        }
    }
}

/* 64-bit words offset .. offset + count - 1: word w (low) and w + 8 (high) of a block, half a tile of elements per tile. */
void tacit_words64(const uint32_t key[8], uint64_t offset, uint64_t count, uint64_t *out) {
    uint32_t words[TILE];
    uint64_t index = offset, end = offset + count;
    while (index < end) {
        uint64_t skip = index % (TILE / 2), left = end - index;
        uint64_t piece = TILE / 2 - skip < left ? TILE / 2 - skip : left;
        chacha_tile(key, 0, index / (TILE / 2) * LANES, words);
        for (uint64_t i = 0; i < piece; i++) out[i] = words[skip + i] | (uint64_t)words[TILE / 2 + skip + i] << 32;
        index += piece;
        out += piece;
    }
}

/* The numbers of the elements offset .. offset + count - 1 whose 64-bit word is below the threshold; returns how many. */
uint64_t tacit_below(const uint32_t key[8], uint64_t offset, uint64_t count, uint64_t threshold, int64_t *out) {
    uint64_t words[TILE / 2], found = 0;
    for (uint64_t index = offset, end = offset + count, piece; index < end; index += piece) {
        piece = TILE / 2 - index % (TILE / 2); /* to the end of a tile, which is computed whole */
        if (piece > end - index) piece = end - index;
        tacit_words64(key, index, piece, words);
        for (uint64_t i = 0; i < piece; i++) {
            out[found] = (int64_t)(index + i); /* stays only where the next line counts it: no branch to foresee */
            found += words[i] < threshold;
        }
    }
    return found;
}
