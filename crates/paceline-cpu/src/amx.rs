//! Intel's matrix tiles: eight registers of up to 16 rows of 64 bytes, and the products of two.
//!
//! Stable Rust has no names for these instructions, so they are spelled out here and nowhere else.
//! `tdpbf16ps` adds to each element of a 16 x 16 tile the dot product of up to 32 pairs of bf16
//! values, as (even columns by one chain of fused multiply-adds) + (odd columns by another): see
//! [`crate::kernels::matmul`], whose scalar form does the same.

use std::arch::asm;

/// Whether the processor has tiles with bf16 and int8 products, and the system lets us use them.
/// The first call asks the system's leave, which holds for the whole process.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| has_instructions() && system_saves_tiles() && ask_leave());
    *AVAILABLE
}

fn has_instructions() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const OSXSAVE: u32 = 1 << 27;
    let wanted = BF16 | TILE | INT8;
    let highest = std::arch::x86_64::__cpuid(0).eax;
    let flags = std::arch::x86_64::__cpuid_count(7, 0).edx;
    let saves = std::arch::x86_64::__cpuid(1).ecx & OSXSAVE != 0;
    highest >= 7 && saves && flags & wanted == wanted
}

/// The tiles' state is among what the system saves and restores for a thread.
fn system_saves_tiles() -> bool {
    const TILE_STATE: u64 = 0b11 << 17;
    let (low, high): (u32, u32);
    // SAFETY: `xgetbv` of register 0 exists where the system has announced XSAVE, which
    // `has_instructions` has checked.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
    }
    let enabled = u64::from(high) << 32 | u64::from(low);
    enabled & TILE_STATE == TILE_STATE
}

/// Linux hands out tile state on request: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
#[cfg(target_os = "linux")]
fn ask_leave() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let result: i64;
    // SAFETY: a system call that reads and writes no memory of ours.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn ask_leave() -> bool {
    false
}

/// The shapes of the eight tiles, as `ldtilecfg` reads them.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct TileShapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileShapes {
    /// All tiles with 16 rows of 64 bytes.
    pub(crate) const fn full() -> TileShapes {
        let mut shapes = TileShapes {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        let mut tile = 0;
        while tile < 8 {
            shapes = shapes.with(tile, 16, 64);
            tile += 1;
        }
        shapes
    }

    /// Tiles 0 to 3, which hold results and what is multiplied from the left, with so many rows
    /// only: products take as long as these have rows.
    pub(crate) const fn of_rows(rows: usize) -> TileShapes {
        let mut shapes = TileShapes::full();
        let mut tile = 0;
        while tile < 4 {
            shapes = shapes.with(tile, rows, 64);
            tile += 1;
        }
        shapes
    }

    /// Tiles 0 and 5, which hold sums and what is multiplied from the right, with so many columns
    /// of floats (or pairs of bf16 values) only.
    pub(crate) const fn of_columns(columns: usize) -> TileShapes {
        TileShapes::full().with(0, 16, 4 * columns).with(5, 16, 4 * columns)
    }

    /// Tile `tile` with `rows` rows of `row_bytes` bytes instead.
    pub(crate) const fn with(mut self, tile: usize, rows: usize, row_bytes: usize) -> TileShapes {
        assert!(tile < 8 && rows <= 16 && row_bytes <= 64);
        self.rows[tile] = rows as u8;
        self.row_bytes[tile] = row_bytes as u16;
        self
    }

    /// Makes these the shapes of this thread's tiles, all zero.
    ///
    /// # Safety
    /// [`is_available`] has said yes. Pair with [`release`].
    #[inline(always)]
    pub(crate) unsafe fn configure(&self) {
        // SAFETY: `self` is a valid configuration of sixty-four bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) }
    }
}

/// Gives the tiles up, so that the system need not save them.
///
/// # Safety
/// [`is_available`] has said yes.
#[inline(always)]
pub(crate) unsafe fn release() {
    // SAFETY: touches the tiles only.
    unsafe { asm!("tilerelease", options(nostack, nomem)) }
}

/// `tile = 0`. The tile is a literal; the tiles are configured.
macro_rules! tile_zero {
    ($tile:literal) => {
        ::std::arch::asm!(concat!("tilezero tmm", $tile), options(nostack, nomem))
    };
}

/// Loads a tile's rows from `from`, `stride` bytes apart.
macro_rules! tile_load {
    ($tile:literal, $from:expr, $stride:expr) => {
        ::std::arch::asm!(
            concat!("tileloadd tmm", $tile, ", [{from} + {stride}]"),
            from = in(reg) $from,
            stride = in(reg) $stride,
            options(nostack, readonly),
        )
    };
}

/// The same for rows that are used from the second-level cache: they leave the first-level cache as
/// it is, and do not come into it for the next time.
macro_rules! tile_load_past {
    ($tile:literal, $from:expr, $stride:expr) => {
        ::std::arch::asm!(
            concat!("tileloaddt1 tmm", $tile, ", [{from} + {stride}]"),
            from = in(reg) $from,
            stride = in(reg) $stride,
            options(nostack, readonly),
        )
    };
}

/// Stores a tile's rows to `to`, `stride` bytes apart.
macro_rules! tile_store {
    ($tile:literal, $to:expr, $stride:expr) => {
        ::std::arch::asm!(
            concat!("tilestored [{to} + {stride}], tmm", $tile),
            to = in(reg) $to,
            stride = in(reg) $stride,
            options(nostack),
        )
    };
}

/// `sums += a x b`, where `a` holds rows of bf16 values and `b` pairs of rows, interleaved.
macro_rules! tile_dot_bf16 {
    ($sums:literal, $a:literal, $b:literal) => {
        ::std::arch::asm!(
            concat!("tdpbf16ps tmm", $sums, ", tmm", $a, ", tmm", $b),
            options(nostack, nomem),
        )
    };
}

/// `sums += a x b`, where `a` holds rows of signed bytes and `b` fours of rows, interleaved.
macro_rules! tile_dot_int8 {
    ($sums:literal, $a:literal, $b:literal) => {
        ::std::arch::asm!(
            concat!("tdpbssd tmm", $sums, ", tmm", $a, ", tmm", $b),
            options(nostack, nomem),
        )
    };
}

/// `sums += a x b`, where `a` holds rows of signed bytes and `b` fours of rows of bytes without
/// sign, interleaved.
macro_rules! tile_dot_bytes {
    ($sums:literal, $a:literal, $b:literal) => {
        ::std::arch::asm!(
            concat!("tdpbsud tmm", $sums, ", tmm", $a, ", tmm", $b),
            options(nostack, nomem),
        )
    };
}

pub(crate) use {
    tile_dot_bf16, tile_dot_bytes, tile_dot_int8, tile_load, tile_load_past, tile_store, tile_zero,
};
