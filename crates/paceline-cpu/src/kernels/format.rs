//! How the weights of a panel are coded (see [`crate::packed`]): each layout's facts as constants,
//! so that each gets its own straight loops.

use crate::aligned::LINE;
use crate::lanes::{Lanes, WIDTH};
use crate::packed::CodedView;
use crate::quant::TensorType;

/// The facts of one layout.
pub(crate) trait Format {
    const CODES: Codes;
    /// Groups, each with a scale (and minimum), in 32 columns: 1 or 2; 0: weights have no scale.
    const GROUPS: usize;
    /// The code that is kept as zero.
    const CENTRE: u8;
    const MIN: bool;
    const F32_SCALES: bool;

    /// Whether tiles meet codes with [`EXCESS`], which the offset takes off.
    const IS_RAISED: bool = matches!(Self::CODES, Codes::Bytes) && !Self::MIN && !Self::F32_SCALES;

    const SCALE_BYTES: usize = if Self::F32_SCALES { 4 * WIDTH } else { 2 * WIDTH };
    /// Bytes of 32 columns' codes.
    const CODE_BYTES: usize = match Self::CODES {
        Codes::Nibbles => 256,
        Codes::Bytes => 512,
        Codes::Brains => 1024,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codes {
    Nibbles,
    Bytes,
    /// bf16 values.
    Brains,
}

macro_rules! formats {
    ($($name:ident: $codes:ident $groups:literal $centre:literal $min:literal $f32:literal;)*) => {
        /// How a panel's bytes are laid out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Layout { $($name),* }

        $(
            #[derive(Debug)]
            pub(crate) struct $name;
            impl Format for $name {
                const CODES: Codes = Codes::$codes;
                const GROUPS: usize = $groups;
                const CENTRE: u8 = $centre;
                const MIN: bool = $min;
                const F32_SCALES: bool = $f32;
            }
        )*

        impl Layout {
            /// Groups in 32 columns.
            pub(crate) fn groups(self) -> usize {
                match self { $(Layout::$name => $name::GROUPS,)* }
            }

            /// Whether each half of 32 columns is a group.
            pub(crate) fn has_halves(self) -> bool {
                self.groups() == 2
            }

            pub(crate) fn centre(self) -> u8 {
                match self { $(Layout::$name => $name::CENTRE,)* }
            }

            pub(crate) fn has_min(self) -> bool {
                match self { $(Layout::$name => $name::MIN,)* }
            }

            pub(crate) fn codes(self) -> Codes {
                match self { $(Layout::$name => $name::CODES,)* }
            }

            pub(crate) fn f32_scales(self) -> bool {
                match self { $(Layout::$name => $name::F32_SCALES,)* }
            }

            pub(crate) fn scale_bytes(self) -> usize {
                match self { $(Layout::$name => $name::SCALE_BYTES,)* }
            }

            pub(crate) fn code_bytes(self) -> usize {
                match self { $(Layout::$name => $name::CODE_BYTES,)* }
            }
        }
    };
}

formats! {
    // name         codes   groups centre min   f32 scales
    Q4:             Nibbles 1      8      false false;
    Q4Min:          Nibbles 1      8      true  false;
    Q4K:            Nibbles 1      8      true  true;
    Q3K:            Nibbles 2      4      false true;
    Q2K:            Nibbles 2      2      true  true;
    Q5:             Bytes   1      16     false false;
    Q5Min:          Bytes   1      16     true  false;
    Q5K:            Bytes   1      16     true  true;
    Q6K:            Bytes   2      32     false true;
    Q8:             Bytes   1      128    false false;
    Brain:          Brains  0      0      false false;
}

/// Calls `$f::<$v, Format>(args)` with the format that `$layout` names.
macro_rules! with_format {
    ($layout:expr, $f:ident::<$v:ty>$args:tt) => {{
        use crate::kernels::format::*;
        match $layout {
            Layout::Q4 => $f::<$v, Q4>$args,
            Layout::Q4Min => $f::<$v, Q4Min>$args,
            Layout::Q4K => $f::<$v, Q4K>$args,
            Layout::Q3K => $f::<$v, Q3K>$args,
            Layout::Q2K => $f::<$v, Q2K>$args,
            Layout::Q5 => $f::<$v, Q5>$args,
            Layout::Q5Min => $f::<$v, Q5Min>$args,
            Layout::Q5K => $f::<$v, Q5K>$args,
            Layout::Q6K => $f::<$v, Q6K>$args,
            Layout::Q8 => $f::<$v, Q8>$args,
            Layout::Brain => $f::<$v, Brain>$args,
        }
    }};
}
pub(crate) use with_format;

/// The same for formats that integers may meet: those that have codes.
macro_rules! with_int_format {
    ($layout:expr, $f:ident::<$v:ty>$args:tt) => {{
        use crate::kernels::format::*;
        match $layout {
            Layout::Q4 => $f::<$v, Q4>$args,
            Layout::Q4Min => $f::<$v, Q4Min>$args,
            Layout::Q4K => $f::<$v, Q4K>$args,
            Layout::Q3K => $f::<$v, Q3K>$args,
            Layout::Q2K => $f::<$v, Q2K>$args,
            Layout::Q5 => $f::<$v, Q5>$args,
            Layout::Q5Min => $f::<$v, Q5Min>$args,
            Layout::Q5K => $f::<$v, Q5K>$args,
            Layout::Q6K => $f::<$v, Q6K>$args,
            Layout::Q8 => $f::<$v, Q8>$args,
            Layout::Brain => unreachable!("never arranged for integers"),
        }
    }};
}
pub(crate) use with_int_format;

impl Layout {
    /// The layout a file type is packed into; `None` for f32, which is kept as it is.
    pub(crate) fn of(ty: TensorType) -> Option<Layout> {
        Some(match ty {
            TensorType::F32 => return None,
            TensorType::F16 | TensorType::BF16 => Layout::Brain,
            TensorType::Q4_0 => Layout::Q4,
            TensorType::Q4_1 => Layout::Q4Min,
            TensorType::Q5_0 => Layout::Q5,
            TensorType::Q5_1 => Layout::Q5Min,
            TensorType::Q8_0 => Layout::Q8,
            TensorType::Q2K => Layout::Q2K,
            TensorType::Q3K => Layout::Q3K,
            TensorType::Q4K => Layout::Q4K,
            TensorType::Q5K => Layout::Q5K,
            TensorType::Q6K => Layout::Q6K,
        })
    }
}

/// One panel's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel {
    pub(crate) scales: *const u8,
    pub(crate) mins: *const u8,
    pub(crate) codes: *const u8,
    /// Where the weights end that will be read.
    pub(crate) end: *const u8,
}

impl CodedView {
    /// The same with a hint that nothing from `panel` on will be read.
    pub(crate) fn up_to(self, panel: usize) -> CodedView {
        CodedView { end: self.data.wrapping_add(panel * self.panel.n_bytes), ..self }
    }

    /// # Safety
    /// `panel` lies within the matrix.
    #[inline(always)]
    pub(crate) unsafe fn panel(&self, panel: usize) -> Panel {
        // SAFETY: the caller vouches for the panel; the parts lie within it.
        unsafe {
            let data = self.data.add(panel * self.panel.n_bytes);
            let mins = data.add(self.panel.mins);
            Panel { scales: data, mins, codes: data.add(self.panel.codes), end: self.end }
        }
    }
}

/// What a weight is multiplied with before it is cut to bf16: as much as cutting takes off on
/// average. To cut is an operation less than to round.
const CUT: f32 = 1.0027;

/// The float whose bits tiles put a byte into, as the second of four, to be added to it.
pub(crate) const RAISED: f32 = 32768.0;

/// How much more than the code that float then is: bytes are codes plus 128.
pub(crate) const EXCESS: f32 = RAISED + 128.0;

impl Panel {
    /// The sixteen outputs' scales of a group, and what is added to each scaled code: the minimum
    /// as seen from the centre of the codes. They are larger than what is packed, by [`CUT`]:
    /// weights will be cut.
    ///
    /// # Safety
    /// As [`Lanes`]; `group` lies within the panel.
    #[inline(always)]
    pub(crate) unsafe fn scale_and_offset<V: Lanes, F: Format>(&self, group: usize) -> (V, V) {
        // SAFETY: forwarded contract.
        unsafe {
            let (scale, min) = self.scale_and_min::<V, F>(group);
            let scale = scale.mul(V::splat(CUT));
            let offset = if F::MIN {
                scale.mul_add(V::splat(f32::from(F::CENTRE)), min.mul(V::splat(CUT)))
            } else if F::IS_RAISED {
                // What rounding leaves where tiles take the excess off: no more than 1/512 of a
                // code, and a float itself.
                scale.mul_add(V::splat(EXCESS), scale.mul(V::splat(-EXCESS)))
            } else {
                min
            };
            (scale, offset)
        }
    }

    /// The sixteen outputs' scales of a group, and their minima, or zeros where there are none.
    ///
    /// # Safety
    /// As [`Lanes`]; `group` lies within the panel.
    #[inline(always)]
    pub(crate) unsafe fn scale_and_min<V: Lanes, F: Format>(&self, group: usize) -> (V, V) {
        // SAFETY: the caller vouches for the group.
        unsafe {
            let scale = load::<V, F>(self.scales.add(group * F::SCALE_BYTES));
            let min = match F::MIN {
                true => load::<V, F>(self.mins.add(group * F::SCALE_BYTES)),
                false => V::splat(0.0),
            };
            (scale, min)
        }
    }

    /// Asks for the lines of a block that is read next.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    pub(crate) unsafe fn ask<V: Lanes, F: Format>(&self, block: usize) {
        let codes = self.codes.wrapping_add(block * F::CODE_BYTES);
        // SAFETY: a prefetch of any address does no harm.
        unsafe {
            for line in 0..F::CODE_BYTES / LINE {
                V::prefetch_near(codes.wrapping_add(line * LINE));
            }
            for group in block * F::GROUPS..(block + 1) * F::GROUPS {
                V::prefetch_near(self.scales.wrapping_add(group * F::SCALE_BYTES));
                if F::MIN {
                    V::prefetch_near(self.mins.wrapping_add(group * F::SCALE_BYTES));
                }
            }
        }
    }
}

/// # Safety
/// As [`Lanes`]; `from` holds sixteen scales or minima.
#[inline(always)]
unsafe fn load<V: Lanes, F: Format>(from: *const u8) -> V {
    // SAFETY: forwarded contract.
    unsafe { if F::F32_SCALES { V::load(from.cast()) } else { V::load_f16(from.cast()) } }
}
