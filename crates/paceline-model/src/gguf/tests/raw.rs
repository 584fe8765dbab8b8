//! A GGUF file as raw parts, any of which may lie.

pub(super) struct Raw {
    pub(super) magic: [u8; 4],
    pub(super) version: u32,
    pub(super) n_tensors: u64,
    pub(super) n_entries: u64,
    /// Metadata and tensor table.
    pub(super) body: Vec<u8>,
    pub(super) n_data: usize,
}

impl Raw {
    /// A valid file without metadata: one F32 tensor of 8 values.
    pub(super) fn valid() -> Self {
        Self::tensors(vec![tensor("t", &[8], 0, 0)], 32)
    }

    pub(super) fn tensors(tensors: Vec<Vec<u8>>, n_data: usize) -> Self {
        let n_tensors = tensors.len() as u64;
        let (magic, body) = (*b"GGUF", tensors.concat());
        Self {
            magic,
            version: 3,
            n_tensors,
            n_entries: 0,
            body,
            n_data,
        }
    }

    /// A file of metadata entries alone.
    pub(super) fn entries(entries: Vec<Vec<u8>>) -> Self {
        let (magic, n_entries, body) = (*b"GGUF", entries.len() as u64, entries.concat());
        Self {
            magic,
            version: 3,
            n_tensors: 0,
            n_entries,
            body,
            n_data: 0,
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.to_le_bytes());
        out.extend(self.n_entries.to_le_bytes());
        out.extend(&self.body);
        out.resize(out.len().next_multiple_of(32) + self.n_data, 0);
        out
    }
}

pub(super) fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

pub(super) fn entry(key: &str, type_id: u32, value: &[u8]) -> Vec<u8> {
    [
        &string(key.as_bytes()),
        type_id.to_le_bytes().as_slice(),
        value,
    ]
    .concat()
}

pub(super) fn array(type_id: u32, len: u64, items: &[u8]) -> Vec<u8> {
    [type_id.to_le_bytes().as_slice(), &len.to_le_bytes(), items].concat()
}

pub(super) fn tensor(name: &str, dims: &[u64], type_id: u32, offset: u64) -> Vec<u8> {
    let mut out = string(name.as_bytes());
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
    out.extend(type_id.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}
