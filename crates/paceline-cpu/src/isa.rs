//! Which instruction set the kernels run on: found once, at start, and lowerable by hand.

use std::fmt;
use std::str::FromStr;

/// Instruction sets, weakest first. All of them compute the same bits; they differ in speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain code for any machine: the meaning of every kernel.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL).
    Avx512,
    /// The same with VNNI, products of small integers.
    Vnni,
    /// AVX-512 with VBMI and VNNI, and matrix tiles with products of bf16 values and of bytes.
    Amx,
}

/// The environment variable that lowers the choice.
pub const ISA_VARIABLE: &str = "PACELINE_ISA";

impl Isa {
    pub const ALL: [Isa; 5] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Vnni, Isa::Amx];

    /// The best this machine has.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
            let tiles = is_x86_feature_detected!("avx512vbmi") && crate::amx::is_available();
            if vnni && tiles {
                return Isa::Amx;
            }
            if vnni {
                return Isa::Vnni;
            }
            if avx512 {
                return Isa::Avx512;
            }
            if avx2 {
                return Isa::Avx2;
            }
        }
        Isa::Scalar
    }

    /// The best this machine has, or what `PACELINE_ISA` lowers it to.
    pub fn from_env() -> Result<Isa, IsaError> {
        match std::env::var(ISA_VARIABLE) {
            Ok(name) => name.parse::<Isa>()?.require(),
            Err(_) => Ok(Isa::detect()),
        }
    }

    /// This instruction set, if the machine has it.
    pub fn require(self) -> Result<Isa, IsaError> {
        let best = Isa::detect();
        if self <= best { Ok(self) } else { Err(IsaError::Missing { wanted: self, best }) }
    }

    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Vnni => "avx512_vnni",
            Isa::Amx => "amx",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Isa, IsaError> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| IsaError::Unknown { name: name.to_owned() })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IsaError {
    Unknown { name: String },
    Missing { wanted: Isa, best: Isa },
}

impl fmt::Display for IsaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IsaError::Unknown { name } => write!(
                f,
                "instruction set '{name}' is not known; {ISA_VARIABLE} takes scalar, avx2, avx512, \
                 avx512_vnni or amx"
            ),
            IsaError::Missing { wanted, best } => write!(
                f,
                "this machine has no {wanted}; its best is {best} (unset {ISA_VARIABLE} to use it)"
            ),
        }
    }
}

impl std::error::Error for IsaError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
        assert!(matches!("sse9".parse::<Isa>(), Err(IsaError::Unknown { .. })));
    }

    #[test]
    fn scalar_is_everywhere() {
        assert_eq!(Isa::Scalar.require(), Ok(Isa::Scalar));
        assert!(Isa::detect().require().is_ok());
    }
}
