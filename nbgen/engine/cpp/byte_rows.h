// Rows of float as fixed-point numbers of three signed bytes, for products with weights of 8 bits as integers.
//
// A number is rounded to the 24th bit of its row's largest one, as float rounds that one. Where a row has numbers that are not
// finite, its step is none either. Knows no weights.

#pragma once

#include "aligned.h"
#include "weights.h"

#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
#define BYTE_PRODUCTS

typedef int32_t Integers32 __attribute__((vector_size(VECTOR), aligned(4)));

constexpr int PLACES = 3;              // bytes of a number, the last significant one first
constexpr uint32_t MIDDLES = 0x808080;  // their sum if each is 128
constexpr uint32_t FLIP = 0x80808080;   // turns signed bytes into those that are 128 larger, without a sign

// Adds the products of bytes without a sign and of signed ones, four in each lane. No sum overflows.
[[gnu::always_inline]] inline Integers32 add_bytes(Integers32 sums, Words bytes, Words signed_bytes) {
#ifdef __AVX512F__
    return reinterpret_cast<Integers32>(_mm512_dpbusd_epi32(
        reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(bytes), reinterpret_cast<__m512i>(signed_bytes)));
#else
    return reinterpret_cast<Integers32>(_mm256_dpbusd_avx_epi32(
        reinterpret_cast<__m256i>(sums), reinterpret_cast<__m256i>(bytes), reinterpret_cast<__m256i>(signed_bytes)));
#endif
}

#ifdef __AVX512F__

inline Words nearest(Floats numbers) { return reinterpret_cast<Words>(_mm512_cvtps_epi32(reinterpret_cast<__m512>(numbers))); }

// Stores the last byte of each word.
inline void put_bytes(Words words, int8_t* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(words)));
}

#else

inline Words nearest(Floats numbers) { return reinterpret_cast<Words>(_mm256_cvtps_epi32(reinterpret_cast<__m256>(numbers))); }

inline void put_bytes(Words words, int8_t* to) {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m256i fours = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(words), order);
    _mm_storeu_si64(to, _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0))));
}

#endif

// Rows in memory of `size` bytes, once each is fixed.
class ByteRows {
  public:
    ByteRows(int64_t rows, int64_t inputs, void* memory) : rows(rows), inputs_(inputs), bytes_(static_cast<int8_t*>(memory)) {}

    static int64_t size(int64_t rows, int64_t inputs) { return rows * (PLACES * (inputs + VECTOR) + sizeof(float)); }

    // Writes the row `m`.
    void fix(int64_t m, const float* row) {
        Floats largest = all_of(1e-30f), nothing = {};
        for (int64_t k = 0; k < inputs_; k += LANES) {
            const Floats some = floats_at(row + k), sizes = some < 0.0f ? -some : some;
            largest = sizes > largest ? sizes : largest;
            nothing += some * 0.0f;
        }
        for (int i = 1; i < LANES; i++) largest[0] = std::max(largest[0], largest[i]), nothing[0] += nothing[i];
        write(m, row, LARGEST / largest[0]);
        const float step = largest[0] / LARGEST + nothing[0];
        std::memcpy(step_at(m), &step, sizeof step);
    }

    // One place of a row's numbers.
    const int8_t* bytes(int64_t m, int place) const { return bytes_ + (m * PLACES + place) * inputs_; }

    // What its sums of products with flipped weights begin with: then they end as those of the weights themselves.
    Integers32 starts(int64_t m, int place) const { return reinterpret_cast<Integers32>(words_at(start_at(m, place))); }

    // What a row's fixed-point numbers are multiples of.
    float step(int64_t m) const {
        float step;
        std::memcpy(&step, step_at(m), sizeof step);
        return step;
    }

    int64_t rows;

  private:
    static constexpr float LARGEST = 8355000.0f;  // fits into the bytes, also if it is rounded up

    void write(int64_t m, const float* row, float share) {
        int8_t* to = bytes_ + m * PLACES * inputs_;
        for (int64_t k = 0; k < inputs_; k += LANES) {
            const Words fixed = (nearest(floats_at(row + k) * share) + MIDDLES) ^ FLIP;
            for (int place = 0; place < PLACES; place++) put_bytes(fixed >> 8 * place, to + place * inputs_ + k);
        }
        for (int place = 0; place < PLACES; place++, to += inputs_) {
            Integers32 sums = {};
            for (int64_t k = 0; k < inputs_; k += VECTOR) sums = add_bytes(sums, Words{} + FLIP, words_at(to + k));
            put(-sums, start_at(m, place));
        }
    }

    int8_t* start_at(int64_t m, int place) const { return bytes_ + rows * PLACES * inputs_ + (m * PLACES + place) * VECTOR; }
    int8_t* step_at(int64_t m) const { return start_at(rows, 0) + m * sizeof(float); }

    int64_t inputs_;
    int8_t* bytes_;
};

// Rows in a buffer of the thread's, which has one, for one such object at a time.
inline ByteRows byte_rows(int64_t rows, int64_t inputs, const float* numbers) {
    thread_local Aligned<int8_t> room;
    ByteRows made(rows, inputs, at_least(room, ByteRows::size(rows, inputs)));
    for (int64_t m = 0; m < rows; m++) made.fix(m, numbers + m * inputs);
    return made;
}

#endif
