//! What the machine can do at best: read bandwidth, and arithmetic from registers.
//!
//! These are the ceilings that kernels are measured against. Nothing here computes a result, and
//! no kernel uses it.

use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::acts::ActDtype;
use crate::isa::Isa;
use crate::pool::Pool;

/// Bytes a thread reads between two looks at the clock, at least.
const BYTES_PER_TURN: usize = 8 << 20;
/// Rounds of arithmetic between two looks at the clock.
const ROUNDS_PER_TURN: usize = 200_000;

/// A way of multiplying and adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `f32` products and sums in plain code.
    PlainF32,
    /// `f32` fused multiply-add on AVX2.
    Avx2F32,
    /// Products of bytes, two by two, added up as half words on AVX2.
    Avx2Int8,
    /// `f32` fused multiply-add on AVX-512.
    Avx512F32,
    /// As [`Unit::Avx2Int8`].
    Avx512Int8,
    /// Dot products of bytes on AVX-512 VNNI.
    VnniInt8,
    /// Products of tiles of bf16.
    AmxBf16,
    /// Products of tiles of bytes.
    AmxInt8,
}

impl Unit {
    pub const ALL: [Unit; 8] = [
        Unit::PlainF32,
        Unit::Avx2F32,
        Unit::Avx2Int8,
        Unit::Avx512F32,
        Unit::Avx512Int8,
        Unit::VnniInt8,
        Unit::AmxBf16,
        Unit::AmxInt8,
    ];

    /// The fastest unit the kernels of an instruction set use for such activations.
    pub fn of(isa: Isa, acts: ActDtype) -> Unit {
        match (isa, acts) {
            (Isa::Scalar, _) => Unit::PlainF32,
            (Isa::Avx2, ActDtype::Bf16) => Unit::Avx2F32,
            (Isa::Avx2, _) => Unit::Avx2Int8,
            (Isa::Avx512 | Isa::Vnni, ActDtype::Bf16) => Unit::Avx512F32,
            (Isa::Avx512, _) => Unit::Avx512Int8,
            (Isa::Vnni, _) => Unit::VnniInt8,
            (Isa::Amx, _) => Unit::AmxBf16,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Unit::PlainF32 => "plain f32",
            Unit::Avx2F32 => "AVX2 f32",
            Unit::Avx2Int8 => "AVX2 int8",
            Unit::Avx512F32 => "AVX-512 f32",
            Unit::Avx512Int8 => "AVX-512 int8",
            Unit::VnniInt8 => "AVX-512 VNNI int8",
            Unit::AmxBf16 => "AMX bf16",
            Unit::AmxInt8 => "AMX int8",
        }
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        let isa = match self {
            Unit::PlainF32 => Isa::Scalar,
            Unit::Avx2F32 | Unit::Avx2Int8 => Isa::Avx2,
            Unit::Avx512F32 | Unit::Avx512Int8 => Isa::Avx512,
            Unit::VnniInt8 => Isa::Vnni,
            Unit::AmxBf16 | Unit::AmxInt8 => Isa::Amx,
        };
        isa <= Isa::detect()
    }

    /// Products and sums in one round of the unit's loop.
    fn ops_per_round(self) -> usize {
        match self {
            Unit::PlainF32 => 2 * CHAINS * 4,
            Unit::Avx2F32 => 2 * CHAINS * 8,
            Unit::Avx2Int8 => 2 * CHAINS * 32,
            Unit::Avx512F32 => 2 * CHAINS * 16,
            Unit::Avx512Int8 | Unit::VnniInt8 => 2 * CHAINS * 64,
            Unit::AmxBf16 => 2 * TILES * 16 * 16 * 32,
            Unit::AmxInt8 => 2 * TILES * 16 * 16 * 64,
        }
    }

    fn run(self, n_rounds: usize) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Meter::ops_per_s` has asked whether the machine has it.
            Unit::Avx2F32 => unsafe { x86::fma_avx2(n_rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Unit::Avx2Int8 => unsafe { x86::pairs_avx2(n_rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Unit::Avx512Int8 => unsafe { x86::pairs_avx512(n_rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Unit::Avx512F32 => unsafe { x86::fma_avx512(n_rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Unit::VnniInt8 => unsafe { x86::vnni(n_rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Unit::AmxBf16 => unsafe { x86::tiles_bf16(n_rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Unit::AmxInt8 => unsafe { x86::tiles_int8(n_rounds) },
            _ => multiply_add(n_rounds),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Threads to measure with.
#[derive(Debug)]
pub struct Meter {
    pool: Pool,
}

impl Meter {
    pub fn new(n_threads: usize) -> std::io::Result<Meter> {
        Ok(Meter { pool: Pool::new(n_threads)? })
    }

    /// Bytes read in a second when all threads together read `data` over and over, each its own
    /// part, for about as long as `budget`.
    pub fn read_bytes_per_s(&mut self, data: &[u64], budget: Duration) -> f64 {
        let n_threads = self.pool.n_threads();
        let n_bytes = size_of_val(data);
        if n_bytes == 0 {
            return 0.0;
        }
        let n_passes = (BYTES_PER_TURN * n_threads / n_bytes).max(1);
        let per_s = self.repeat(budget, &|thread| {
            let part = data.len() * thread / n_threads..data.len() * (thread + 1) / n_threads;
            for _ in 0..n_passes {
                black_box(read(&data[part.clone()]));
            }
        });
        per_s * (n_passes * n_bytes) as f64
    }

    /// Products and sums in a second, of all threads together; `None` if the machine has no such
    /// unit.
    pub fn ops_per_s(&mut self, unit: Unit, budget: Duration) -> Option<f64> {
        if !unit.is_available() {
            return None;
        }
        let per_s = self.repeat(budget, &|_| unit.run(ROUNDS_PER_TURN));
        let n_ops = ROUNDS_PER_TURN * unit.ops_per_round() * self.pool.n_threads();
        Some(per_s * n_ops as f64)
    }

    /// Runs the job until the budget is spent; returns how often a second.
    fn repeat(&mut self, budget: Duration, job: &(dyn Fn(usize) + Sync)) -> f64 {
        // The first one fills caches and wakes the threads.
        self.pool.run_on_all(job);
        let start = Instant::now();
        let mut n = 0;
        while n == 0 || start.elapsed() < budget {
            self.pool.run_on_all(job);
            n += 1;
        }
        f64::from(n) / start.elapsed().as_secs_f64()
    }
}

/// Independent chains, enough to hide the latency of an operation on two ports.
const CHAINS: usize = 12;

/// Tiles that sums are kept in; the other four hold what is multiplied.
const TILES: usize = 4;

/// Four lanes to a chain: what any x86-64 or 64-bit ARM compiles to vectors without being asked.
fn multiply_add(n_rounds: usize) {
    let (factor, term) = (black_box(0.999_f32), black_box(0.001_f32));
    let mut sums = [[1.0_f32; 4]; CHAINS];
    for _ in 0..n_rounds {
        for sum in &mut sums {
            for lane in sum {
                *lane = *lane * factor + term;
            }
        }
    }
    black_box(sums);
}

/// Parts that are read side by side: the processor looks ahead within the pages that are being
/// read, so several of them bring in more than one.
const STREAMS: usize = 4;

/// Touches every byte; what it returns only keeps the loads alive.
fn read(data: &[u64]) -> u64 {
    // Eight words are a cache line, and as many as the widest vector has.
    let n_each = data.len() / STREAMS / 8 * 8;
    let (streams, rest) = data.split_at(STREAMS * n_each);
    let rest = rest.iter().fold(0, |all, word| all ^ word);
    if n_each == 0 {
        return rest;
    }
    let mut streams = streams.chunks_exact(n_each);
    let streams = [(); STREAMS].map(|()| streams.next().unwrap_or_default());
    rest ^ read_streams(streams)
}

fn read_streams(streams: [&[u64]; STREAMS]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    match Isa::detect() {
        // SAFETY: the machine has it.
        Isa::Avx512 | Isa::Vnni | Isa::Amx => return unsafe { x86::read_avx512(streams) },
        // SAFETY: the machine has it.
        Isa::Avx2 => return unsafe { x86::read_avx2(streams) },
        Isa::Scalar => {}
    }
    streams.iter().flat_map(|stream| stream.iter()).fold(0, |all, word| all ^ word)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CHAINS, STREAMS, black_box};
    use std::arch::x86_64::*;

    use crate::amx::{self, TileShapes, tile_dot_bf16, tile_dot_int8};

    /// Repeats a statement for each of the chains, by name: a loop over an array of vectors would
    /// leave it to the compiler whether they live in registers.
    macro_rules! chains {
        ($start:expr, $n_rounds:expr, |$sum:ident| $next:expr) => {{
            let [mut a, mut b, mut c, mut d, mut e, mut f] = [$start; 6];
            let [mut g, mut h, mut i, mut j, mut k, mut l] = [$start; 6];
            const { assert!(CHAINS == 12) };
            for _ in 0..$n_rounds {
                chains!(@each $sum, $next, a b c d e f g h i j k l);
            }
            for last in [a, b, c, d, e, f, g, h, i, j, k, l] {
                black_box(last);
            }
        }};
        (@each $sum:ident, $next:expr, $($name:ident)*) => {
            $( $name = { let $sum = $name; $next }; )*
        };
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn fma_avx2(n_rounds: usize) {
        let (factor, term) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
        chains!(_mm256_set1_ps(1.0), n_rounds, |sum| _mm256_fmadd_ps(sum, factor, term));
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn fma_avx512(n_rounds: usize) {
        let (factor, term) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.001)));
        chains!(_mm512_set1_ps(1.0), n_rounds, |sum| _mm512_fmadd_ps(sum, factor, term));
    }

    /// What is multiplied depends on the sum, so that the product stays in the loop.
    #[target_feature(enable = "avx2")]
    pub(super) fn pairs_avx2(n_rounds: usize) {
        let right = _mm256_set1_epi8(black_box(5));
        chains!(_mm256_setzero_si256(), n_rounds, |sum| {
            _mm256_add_epi16(sum, _mm256_maddubs_epi16(sum, right))
        });
    }

    /// As [`pairs_avx2`].
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn pairs_avx512(n_rounds: usize) {
        let right = _mm512_set1_epi8(black_box(5));
        chains!(_mm512_setzero_si512(), n_rounds, |sum| {
            _mm512_add_epi16(sum, _mm512_maddubs_epi16(sum, right))
        });
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn vnni(n_rounds: usize) {
        let (left, right) = (_mm512_set1_epi32(black_box(3)), _mm512_set1_epi32(black_box(5)));
        chains!(_mm512_setzero_si512(), n_rounds, |sum| _mm512_dpbusd_epi32(sum, left, right));
    }

    /// # Safety
    /// The machine has tiles, and lets us use them.
    pub(super) unsafe fn tiles_bf16(n_rounds: usize) {
        // SAFETY: the caller's word. Configured tiles are zero, and registers are all that is used.
        unsafe {
            TileShapes::full().configure();
            for _ in 0..n_rounds {
                tile_dot_bf16!(0, 4, 6);
                tile_dot_bf16!(1, 4, 7);
                tile_dot_bf16!(2, 5, 6);
                tile_dot_bf16!(3, 5, 7);
            }
            amx::release();
        }
    }

    /// # Safety
    /// The machine has tiles, and lets us use them.
    pub(super) unsafe fn tiles_int8(n_rounds: usize) {
        // SAFETY: as above.
        unsafe {
            TileShapes::full().configure();
            for _ in 0..n_rounds {
                tile_dot_int8!(0, 4, 6);
                tile_dot_int8!(1, 4, 7);
                tile_dot_int8!(2, 5, 6);
                tile_dot_int8!(3, 5, 7);
            }
            amx::release();
        }
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn read_avx512(streams: [&[u64]; STREAMS]) -> u64 {
        let mut sums = [_mm512_setzero_si512(); STREAMS];
        let [a, b, c, d] = streams.map(|stream| stream.as_chunks::<8>().0);
        for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
            for (sum, words) in sums.iter_mut().zip([a, b, c, d]) {
                // SAFETY: eight words are one vector.
                let words = unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
                *sum = _mm512_xor_si512(*sum, words);
            }
        }
        let all = sums.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_xor_si512(a, b));
        _mm512_reduce_add_epi64(all) as u64
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn read_avx2(streams: [&[u64]; STREAMS]) -> u64 {
        let mut sums = [_mm256_setzero_si256(); STREAMS];
        let [a, b, c, d] = streams.map(|stream| stream.as_chunks::<4>().0);
        for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
            for (sum, words) in sums.iter_mut().zip([a, b, c, d]) {
                // SAFETY: four words are one vector.
                let words = unsafe { _mm256_loadu_si256(words.as_ptr().cast()) };
                *sum = _mm256_xor_si256(*sum, words);
            }
        }
        let all = sums.into_iter().fold(_mm256_setzero_si256(), |a, b| _mm256_xor_si256(a, b));
        _mm256_extract_epi64::<0>(all) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_of_the_machine_gives_a_rate() {
        let mut meter = Meter::new(2).unwrap();
        for unit in Unit::ALL {
            let rate = meter.ops_per_s(unit, Duration::from_millis(1));
            assert_eq!(rate.is_some(), unit.is_available(), "{unit}");
            assert!(rate.is_none_or(|rate| rate > 0.0 && rate.is_finite()));
        }
        assert!(Unit::PlainF32.is_available());
        for acts in ActDtype::ALL {
            assert!(Unit::of(Isa::detect(), acts).is_available());
        }
    }

    #[test]
    fn reading_any_amount_gives_a_rate() {
        let mut meter = Meter::new(2).unwrap();
        for n_words in [1, 3, 64, 1000, 1 << 17] {
            let rate = meter.read_bytes_per_s(&vec![7; n_words], Duration::from_millis(1));
            assert!(rate > 0.0 && rate.is_finite(), "{n_words} words");
        }
        assert_eq!(meter.read_bytes_per_s(&[], Duration::from_millis(1)), 0.0);
    }
}
