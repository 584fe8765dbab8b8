//! The numbers GGUF knows tensor types by.

use paceline_cpu::quant::TensorType;

/// The type with this number; else the name it has in the format, for the error message.
pub(super) fn from_id(id: u32) -> Result<TensorType, String> {
    TensorType::ALL
        .into_iter()
        .find(|ty| to_id(*ty) == id)
        .ok_or_else(|| name_of_unsupported(id))
}

pub(super) fn to_id(ty: TensorType) -> u32 {
    match ty {
        TensorType::F32 => 0,
        TensorType::F16 => 1,
        TensorType::Q4_0 => 2,
        TensorType::Q4_1 => 3,
        TensorType::Q5_0 => 6,
        TensorType::Q5_1 => 7,
        TensorType::Q8_0 => 8,
        TensorType::Q2K => 10,
        TensorType::Q3K => 11,
        TensorType::Q4K => 12,
        TensorType::Q5K => 13,
        TensorType::Q6K => 14,
        TensorType::BF16 => 30,
    }
}

fn name_of_unsupported(id: u32) -> String {
    let name = match id {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("number {id}"),
    };
    name.to_owned()
}
