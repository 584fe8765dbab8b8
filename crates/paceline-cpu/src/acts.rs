//! Activations as the matrix kernels read them.

/// Values that share one activation scale.
pub const ACT_BLOCK: usize = 32;

/// What a kernel needs to know of thirty-two quantised activations besides the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub(crate) struct ActBlock {
    /// Value of one unit.
    pub(crate) scale: f32,
    /// `scale` times the sum of the units: what a weight's minimum is multiplied with.
    pub(crate) scaled_sum: f32,
    /// Sums of the first and the last sixteen units.
    pub(crate) sums: [i32; 2],
}

/// Rows of activations in the forms the weights read: quantised in blocks of 32 to bytes or to
/// 16-bit words, or as they were. Made once, grows never.
#[derive(Debug, Default)]
pub struct Acts {
    pub(crate) floats: Vec<f32>,
    pub(crate) bytes: Vec<i8>,
    /// Of words, the low bytes; `bytes` then holds the high ones (word = 256 high + low, both
    /// signed).
    pub(crate) low_bytes: Vec<i8>,
    pub(crate) blocks: Vec<ActBlock>,
    pub(crate) n_cols: usize,
    max_rows: usize,
    forms: ActForms,
}

/// Which forms of the activations the consumers read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActForms {
    pub floats: bool,
    pub bytes: bool,
    pub words: bool,
}

impl ActForms {
    /// What two readers need together.
    pub fn or(self, other: ActForms) -> ActForms {
        ActForms {
            floats: self.floats || other.floats,
            bytes: self.bytes || other.bytes,
            words: self.words || other.words,
        }
    }
}

impl Acts {
    /// Room for `max_rows` rows of up to `max_cols` columns.
    pub fn new(max_rows: usize, max_cols: usize) -> Acts {
        let n = max_rows * max_cols;
        Acts {
            floats: vec![0.0; n],
            bytes: vec![0; n],
            low_bytes: vec![0; n],
            blocks: vec![ActBlock::default(); n.div_ceil(ACT_BLOCK)],
            n_cols: max_cols,
            max_rows,
            forms: ActForms::default(),
        }
    }

    /// Says how the next rows will be shaped and read. `n_cols` must fit what `new` got.
    pub fn shape(&mut self, n_cols: usize, forms: ActForms) {
        assert!(self.max_rows * n_cols <= self.floats.len(), "activation buffer too small");
        if forms.bytes || forms.words {
            assert!(n_cols.is_multiple_of(ACT_BLOCK), "quantised rows come in blocks of 32");
        }
        assert!(!(forms.bytes && forms.words), "one step of activations has one precision");
        self.n_cols = n_cols;
        self.forms = forms;
    }

    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    pub fn forms(&self) -> ActForms {
        self.forms
    }

    pub(crate) fn view(&self) -> ActView {
        ActView {
            floats: self.floats.as_ptr(),
            bytes: self.bytes.as_ptr(),
            low_bytes: self.low_bytes.as_ptr(),
            blocks: self.blocks.as_ptr(),
        }
    }

    pub(crate) fn view_mut(&mut self) -> ActViewMut {
        ActViewMut {
            floats: self.floats.as_mut_ptr(),
            bytes: self.bytes.as_mut_ptr(),
            low_bytes: self.low_bytes.as_mut_ptr(),
            blocks: self.blocks.as_mut_ptr(),
            n_cols: self.n_cols,
            forms: self.forms,
        }
    }
}

/// [`Acts`] for kernels that read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActView {
    pub(crate) floats: *const f32,
    pub(crate) bytes: *const i8,
    pub(crate) low_bytes: *const i8,
    pub(crate) blocks: *const ActBlock,
}

/// [`Acts`] for kernels that fill in rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActViewMut {
    pub(crate) floats: *mut f32,
    pub(crate) bytes: *mut i8,
    pub(crate) low_bytes: *mut i8,
    pub(crate) blocks: *mut ActBlock,
    pub(crate) n_cols: usize,
    pub(crate) forms: ActForms,
}

// SAFETY: the pointers are used only inside an op, which holds the borrow of the `Acts` they come
// from; threads write disjoint rows.
unsafe impl Send for ActView {}
// SAFETY: as above.
unsafe impl Sync for ActView {}
// SAFETY: as above.
unsafe impl Send for ActViewMut {}
// SAFETY: as above.
unsafe impl Sync for ActViewMut {}
