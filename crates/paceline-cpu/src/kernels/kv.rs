//! How keys and values are kept: the element types of a page, and writing a token into one.
//!
//! A block of 32 tokens has, for each KV head, a page of keys with the tokens side by side
//! (`[head_dim][32]`) and a page of values with the head's dimensions side by side
//! (`[32][head_dim]`). Bytes need scales: one `f32` for each token, after the page's codes. What is
//! kept of a token depends on its own row alone, so neither the batch nor the cut of a prompt can
//! change it.
//!
//! Attention reads the lines of a page in pairs: of keys, dimensions `2i` and `2i + 1`; of values,
//! tokens `i` and `i + 16`, so that a block's weights form pairs without moving between lanes.
//! Pages of bf16 hold the two lines of a pair interleaved, which is how matrix tiles read them.
//! Pages of bytes hold four neighbouring lines interleaved: a product of bytes takes four at once.

use std::fmt;

use crate::lanes::{Lanes, TINY, WIDTH};
use crate::math::round_within;

/// Token slots of a KV block.
pub const KV_BLOCK: usize = 32;

/// Pairs of tokens of a block.
pub(crate) const VALUE_PAIRS: usize = KV_BLOCK / 2;

/// The largest code of a byte; its negative is the smallest.
const MAX_CODE: f32 = 127.0;

/// Lines of a page of bytes that lie interleaved.
pub(crate) const QUAD: usize = 4;

/// How much more than a key's code its byte is: products of bytes take one factor without sign.
pub(crate) const KEY_EXCESS: u8 = 128;

/// What keys and values are kept as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvDtype {
    F16,
    #[default]
    Bf16,
    /// Bytes, with a scale for each token and KV head.
    Int8,
}

impl KvDtype {
    pub const ALL: [KvDtype; 3] = [KvDtype::F16, KvDtype::Bf16, KvDtype::Int8];

    pub fn name(self) -> &'static str {
        match self {
            KvDtype::F16 => "f16",
            KvDtype::Bf16 => "bf16",
            KvDtype::Int8 => "int8",
        }
    }

    /// Bytes of one KV head's keys, or values, of a block.
    pub fn page_bytes(self, head_dim: usize) -> usize {
        match self {
            KvDtype::F16 => F16::page_bytes(head_dim),
            KvDtype::Bf16 => Bf16::page_bytes(head_dim),
            KvDtype::Int8 => Int8::page_bytes(head_dim),
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One thing for each element type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerDtype<T> {
    pub(crate) f16: T,
    pub(crate) bf16: T,
    pub(crate) int8: T,
}

impl<T: Copy> PerDtype<T> {
    pub(crate) fn of(&self, dtype: KvDtype) -> T {
        match dtype {
            KvDtype::F16 => self.f16,
            KvDtype::Bf16 => self.bf16,
            KvDtype::Int8 => self.int8,
        }
    }
}

/// The facts of one element type, so that each gets its own straight loops.
pub(crate) trait Element {
    type Code: Copy + Default;
    /// Elements are whole numbers, and each token has a scale.
    const SCALED: bool;
    /// Pages are matrix tiles as they lie.
    const IS_TILES: bool = false;

    /// Where an element of the `parity`th line of a pair lies.
    #[inline(always)]
    fn at(lines: Pair, parity: usize, column: usize) -> usize {
        lines.lines[parity] * lines.width + column
    }

    /// Sixteen columns of a pair of lines as bf16 values. Whole numbers are not read like this.
    ///
    /// # Safety
    /// As [`Lanes`]; the page has those lines and columns.
    #[inline(always)]
    unsafe fn load_pair<V: Lanes>(_: *const Self::Code, _: Pair, _column: usize) -> (V, V) {
        unreachable!("see `SCALED`")
    }

    /// Writes the codes of sixteen numbers; `inverse` is one by the scale, if there is one.
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn store<V: Lanes>(numbers: V, inverse: f32, to: *mut Self::Code);

    /// Writes the codes of sixteen numbers as columns, from `column` on, of the `parity`th line of
    /// a pair.
    ///
    /// # Safety
    /// As [`Lanes`]; the page has those lines and columns.
    #[inline(always)]
    unsafe fn store_line<V: Lanes>(
        (numbers, inverse): (V, f32),
        codes: *mut Self::Code,
        (lines, parity): (Pair, usize),
        column: usize,
    ) {
        // SAFETY: forwarded contract.
        unsafe { Self::store(numbers, inverse, codes.add(Self::at(lines, parity, column))) }
    }

    /// Writes a token's codes of sixteen dimensions, from `first` on, into a page of keys.
    ///
    /// # Safety
    /// The page has those dimensions and tokens.
    #[inline(always)]
    unsafe fn put_column(
        column: [Self::Code; WIDTH],
        codes: *mut Self::Code,
        (first, token): (usize, usize),
    ) {
        for (d, code) in (first..).zip(column) {
            let at = Self::at(Pair::of_keys(d / 2), d % 2, token);
            // SAFETY: forwarded contract.
            unsafe { codes.add(at).write_unaligned(code) };
        }
    }

    fn scales_at(head_dim: usize) -> usize {
        KV_BLOCK * head_dim * size_of::<Self::Code>()
    }

    fn page_bytes(head_dim: usize) -> usize {
        let n_scales = if Self::SCALED { KV_BLOCK } else { 0 };
        Self::scales_at(head_dim) + n_scales * size_of::<f32>()
    }
}

/// Two lines of a page that attention reads together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    index: usize,
    lines: [usize; 2],
    width: usize,
}

impl Pair {
    #[inline(always)]
    fn of_keys(index: usize) -> Pair {
        Pair { index, lines: [2 * index, 2 * index + 1], width: KV_BLOCK }
    }

    #[inline(always)]
    fn of_values(index: usize, head_dim: usize) -> Pair {
        Pair { index, lines: [index, index + VALUE_PAIRS], width: head_dim }
    }
}

#[derive(Debug)]
pub(crate) struct F16;
#[derive(Debug)]
pub(crate) struct Bf16;
#[derive(Debug)]
pub(crate) struct Int8;

impl Element for F16 {
    type Code = u16;
    const SCALED: bool = false;

    #[inline(always)]
    unsafe fn load_pair<V: Lanes>(codes: *const u16, lines: Pair, column: usize) -> (V, V) {
        // SAFETY: forwarded contract.
        unsafe {
            let first = V::load_f16(codes.add(Self::at(lines, 0, column)));
            let second = V::load_f16(codes.add(Self::at(lines, 1, column)));
            (first.round_weight(), second.round_weight())
        }
    }

    #[inline(always)]
    unsafe fn store<V: Lanes>(numbers: V, _inverse: f32, to: *mut u16) {
        // SAFETY: forwarded contract.
        unsafe { numbers.store_f16(to) }
    }
}

impl Element for Bf16 {
    type Code = u16;
    const SCALED: bool = false;
    const IS_TILES: bool = true;

    #[inline(always)]
    fn at(lines: Pair, parity: usize, column: usize) -> usize {
        2 * (lines.index * lines.width + column) + parity
    }

    #[inline(always)]
    unsafe fn load_pair<V: Lanes>(codes: *const u16, lines: Pair, column: usize) -> (V, V) {
        // SAFETY: forwarded contract.
        unsafe {
            let words = V::load_words(codes.add(Self::at(lines, 0, column)).cast());
            (V::low_bf16(words), V::high_bf16(words))
        }
    }

    #[inline(always)]
    unsafe fn store<V: Lanes>(numbers: V, _inverse: f32, to: *mut u16) {
        // SAFETY: forwarded contract.
        unsafe { numbers.round_bf16().store_bf16(to) }
    }

    #[inline(always)]
    unsafe fn store_line<V: Lanes>(
        (numbers, _inverse): (V, f32),
        codes: *mut u16,
        (lines, parity): (Pair, usize),
        column: usize,
    ) {
        // SAFETY: forwarded contract.
        unsafe {
            let to = codes.add(Self::at(lines, 0, column));
            numbers.round_bf16().store_bf16_of_pairs(to, parity);
        }
    }
}

impl Element for Int8 {
    type Code = i8;
    const SCALED: bool = true;

    #[inline(always)]
    fn at(lines: Pair, parity: usize, column: usize) -> usize {
        let line = lines.lines[parity];
        line / QUAD * QUAD * lines.width + QUAD * column + line % QUAD
    }

    #[inline(always)]
    unsafe fn store<V: Lanes>(numbers: V, inverse: f32, to: *mut i8) {
        // SAFETY: forwarded contract.
        unsafe { whole_codes(numbers, inverse).store_i8(to) };
    }

    #[inline(always)]
    unsafe fn store_line<V: Lanes>(
        (numbers, inverse): (V, f32),
        codes: *mut i8,
        (lines, parity): (Pair, usize),
        column: usize,
    ) {
        // SAFETY: forwarded contract.
        unsafe {
            let nth = lines.lines[parity] % QUAD;
            let words = codes.add(Self::at(lines, parity, column) - nth);
            whole_codes(numbers, inverse).store_byte_of_words(words, nth);
        }
    }

    #[inline(always)]
    unsafe fn put_column(column: [i8; WIDTH], codes: *mut i8, (first, token): (usize, usize)) {
        let raised = column.map(|code| code.cast_unsigned().wrapping_add(KEY_EXCESS));
        for (d, quad) in (first..).step_by(QUAD).zip(raised.as_chunks::<QUAD>().0) {
            let at = Self::at(Pair::of_keys(d / 2), 0, token);
            // SAFETY: forwarded contract.
            unsafe { codes.add(at).cast::<[u8; QUAD]>().write_unaligned(*quad) };
        }
    }
}

/// The codes of sixteen numbers, as whole numbers.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn whole_codes<V: Lanes>(numbers: V, inverse: f32) -> V {
    // SAFETY: register operations only.
    unsafe { round_within(numbers.mul(V::splat(inverse)), MAX_CODE) }
}

/// One KV head's keys or values of a block.
#[derive(Debug)]
pub(crate) struct Page<E: Element> {
    pub(crate) codes: *const E::Code,
    /// The scales of the 32 tokens, if there are any; not aligned.
    pub(crate) scales: *const f32,
}

impl<E: Element> Clone for Page<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Element> Copy for Page<E> {}

impl<E: Element> Page<E> {
    /// The page of a block and KV head, `index` being `block * n_kv_heads + kv_head`.
    ///
    /// # Safety
    /// The pool has that page.
    #[inline(always)]
    pub(crate) unsafe fn at(pool: *const u8, index: usize, head_dim: usize) -> Page<E> {
        // SAFETY: the caller vouches for the page; scales, if any, are its end.
        unsafe {
            let page = pool.add(index * E::page_bytes(head_dim));
            Page { codes: page.cast(), scales: page.add(E::scales_at(head_dim)).cast() }
        }
    }

    /// Dimensions `2 * pair` and `2 * pair + 1` of sixteen tokens' keys.
    ///
    /// # Safety
    /// As [`Lanes`]; this is a page of keys, with those dimensions and tokens.
    #[inline(always)]
    pub(crate) unsafe fn key_pair<V: Lanes>(self, pair: usize, token: usize) -> (V, V) {
        // SAFETY: forwarded contract.
        unsafe { E::load_pair(self.codes, Pair::of_keys(pair), token) }
    }

    /// Sixteen dimensions, from `d` on, of the values of tokens `pair` and `pair + 16`.
    ///
    /// # Safety
    /// As [`Lanes`]; this is a page of values of heads of `head_dim`, with those dimensions.
    #[inline(always)]
    pub(crate) unsafe fn value_pair<V: Lanes>(
        self,
        pair: usize,
        d: usize,
        head_dim: usize,
    ) -> (V, V) {
        // SAFETY: forwarded contract.
        unsafe { E::load_pair(self.codes, Pair::of_values(pair, head_dim), d) }
    }
}

/// One row's key and value, and the pools they go to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreshKv {
    pub(crate) key: *const f32,
    pub(crate) value: *const f32,
    pub(crate) keys: *mut u8,
    pub(crate) values: *mut u8,
}

/// Writes one row's keys and values of all KV heads into its slot.
///
/// # Safety
/// As [`Lanes`]; key and value hold `n_kv_heads * head_dim` elements, `slot` lies within the pools.
#[inline(always)]
pub(crate) unsafe fn store_kv<V: Lanes, E: Element>(
    fresh: FreshKv,
    slot: usize,
    n_kv_heads: usize,
    head_dim: usize,
) {
    let (block, token) = (slot / KV_BLOCK, slot % KV_BLOCK);
    for head in 0..n_kv_heads {
        // SAFETY: the head's page lies within the pools, its elements within the row.
        unsafe {
            let at = (block * n_kv_heads + head) * E::page_bytes(head_dim);
            let row = head * head_dim;
            put_key::<V, E>(fresh.key.add(row), fresh.keys.add(at), token, head_dim);
            put_value::<V, E>(fresh.value.add(row), fresh.values.add(at), token, head_dim);
        }
    }
}

/// Writes a token's column of a page of keys.
///
/// # Safety
/// As [`Lanes`]; `key` holds `head_dim` elements, a multiple of 16; `token` lies within the page.
#[inline(always)]
unsafe fn put_key<V: Lanes, E: Element>(
    key: *const f32,
    page: *mut u8,
    token: usize,
    head_dim: usize,
) {
    // SAFETY: the column's elements lie within the page.
    unsafe {
        let inverse = put_scale::<V, E>(key, page, token, head_dim);
        let codes = page.cast::<E::Code>();
        for first in (0..head_dim).step_by(WIDTH) {
            let mut column = [E::Code::default(); WIDTH];
            E::store(V::load(key.add(first)), inverse, column.as_mut_ptr());
            E::put_column(column, codes, (first, token));
        }
    }
}

/// Writes a token's row of a page of values.
///
/// # Safety
/// As [`put_key`].
#[inline(always)]
unsafe fn put_value<V: Lanes, E: Element>(
    value: *const f32,
    page: *mut u8,
    token: usize,
    head_dim: usize,
) {
    // SAFETY: the row's elements lie within the page.
    unsafe {
        let inverse = put_scale::<V, E>(value, page, token, head_dim);
        let codes = page.cast::<E::Code>();
        let lines = Pair::of_values(token % VALUE_PAIRS, head_dim);
        for d in (0..head_dim).step_by(WIDTH) {
            let numbers = (V::load(value.add(d)), inverse);
            E::store_line(numbers, codes, (lines, token / VALUE_PAIRS), d);
        }
    }
}

/// Finds and writes a token's scale, where the page has scales, and returns one by it.
///
/// # Safety
/// As [`put_key`].
#[inline(always)]
unsafe fn put_scale<V: Lanes, E: Element>(
    x: *const f32,
    page: *mut u8,
    token: usize,
    head_dim: usize,
) -> f32 {
    if !E::SCALED {
        return 1.0;
    }
    // SAFETY: the token's scale lies within the page.
    unsafe {
        let largest = largest_size::<V>(x, head_dim);
        // The inverse of what is almost nothing may be infinite.
        let is_nothing = largest < TINY;
        let scale = if is_nothing { 0.0 } else { largest / MAX_CODE };
        let scales = page.add(E::scales_at(head_dim)).cast::<f32>();
        scales.add(token).write_unaligned(scale);
        if is_nothing { 0.0 } else { MAX_CODE / largest }
    }
}

/// The largest magnitude; not a number if an element is none or infinite, so that a broken row is
/// not taken for a sound one.
///
/// # Safety
/// As [`put_key`].
#[inline(always)]
pub(crate) unsafe fn largest_size<V: Lanes>(x: *const f32, head_dim: usize) -> f32 {
    // SAFETY: `d` plus sixteen stays within the row.
    unsafe {
        let zero = V::splat(0.0);
        let (mut largest, mut zeros) = (zero, zero);
        for d in (0..head_dim).step_by(WIDTH) {
            let v = V::load(x.add(d));
            zeros = v.mul_add(zero, zeros);
            largest = v.max(zero.sub(v)).max(largest);
        }
        largest.add(zeros).max_magnitude()
    }
}
