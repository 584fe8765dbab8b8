//! One view over a model's files, whatever their format: the spec, and each tensor by its role.
//!
//! [`Checkpoint::open`] checks once that every tensor is there with its shape; the loader that
//! follows need not.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use paceline_cpu::quant::TensorType;

use crate::arch::{self, Arch, Presence, Slot};
use crate::error::ModelError;
use crate::gguf::Gguf;
use crate::safetensors::{Safetensors, read_capped};
use crate::spec::ModelSpec;
pub use crate::tensor::{LayerRole, Role, TensorView};

const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// An opened model.
#[derive(Debug)]
pub struct Checkpoint {
    files: Files,
    spec: ModelSpec,
    /// Names of the tensors that are there.
    names: HashMap<Role, String>,
    norm_offset: f32,
    dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Gguf,
    Safetensors,
}

#[derive(Debug)]
enum Files {
    Gguf(Gguf),
    Safetensors(Safetensors),
}

impl Checkpoint {
    /// Opens a `.gguf` file, a `.safetensors` file with its `config.json` beside it, or a
    /// directory that holds either.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let open = || {
            if path.is_dir() {
                return Self::open_dir(path);
            }
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("safetensors") => {
                    let dir = path.parent().unwrap_or(Path::new("."));
                    Self::open_hf(dir, || Safetensors::open(path))
                }
                _ => Self::from_gguf(Gguf::open(path)?),
            }
        };
        open().map_err(|error| error.at(path))
    }

    /// A GGUF file that is already open.
    pub fn from_gguf(gguf: Gguf) -> Result<Self, ModelError> {
        let (arch, spec) = arch::spec_from_gguf(&gguf)?;
        let files = Files::Gguf(gguf);
        let names = resolve(&files, arch.slots(&spec), arch, None)?;
        Ok(Self { files, spec, names, norm_offset: 0.0, dir: None })
    }

    fn open_dir(dir: &Path) -> Result<Self, ModelError> {
        let index = dir.join("model.safetensors.index.json");
        let single = dir.join("model.safetensors");
        if dir.join("config.json").is_file() {
            if index.is_file() {
                return Self::open_hf(dir, || Safetensors::open_sharded(&index));
            }
            if single.is_file() {
                return Self::open_hf(dir, || Safetensors::open(&single));
            }
        }
        let mut gguf_files = Vec::new();
        for entry in dir.read_dir()? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "gguf") {
                gguf_files.push(path);
            }
        }
        match gguf_files.as_slice() {
            [] => Err(ModelError::NoModel),
            [only] => Self::open(only),
            several => Err(ModelError::SeveralModels(file_names(several))),
        }
    }

    fn open_hf(
        dir: &Path,
        open: impl FnOnce() -> Result<Safetensors, ModelError>,
    ) -> Result<Self, ModelError> {
        let config_path = dir.join("config.json");
        let config = read_capped(&config_path, "config.json", MAX_CONFIG_BYTES)?;
        let model = arch::spec_from_config(&config).map_err(|error| error.at(&config_path))?;
        let files = Files::Safetensors(open()?);
        let arch = model.arch;
        let names = resolve(&files, arch.slots(&model.spec), arch, model.tied)?;
        let (spec, dir) = (model.spec, Some(dir.to_owned()));
        Ok(Self { files, spec, names, norm_offset: arch.hf_norm_offset, dir })
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The tensor of that role; `None` for those this model does without.
    pub fn tensor(&self, role: Role) -> Option<TensorView<'_>> {
        self.names.get(&role).and_then(|name| self.files.tensor(name))
    }

    /// The type of most of its layers' weights.
    pub fn usual_type(&self) -> TensorType {
        let mut n_weights = BTreeMap::new();
        for (_, name) in self.names.iter().filter(|(role, _)| matches!(role, Role::Layer(..))) {
            let tensor = self.files.tensor(name).expect("names were resolved on opening");
            *n_weights.entry(tensor.ty).or_insert(0) += tensor.rows * tensor.cols;
        }
        let most = n_weights.into_iter().max_by_key(|&(_, n)| n);
        most.map_or(TensorType::F32, |(ty, _)| ty)
    }

    /// To be added to every norm's weights.
    pub fn norm_offset(&self) -> f32 {
        self.norm_offset
    }

    pub fn format(&self) -> Format {
        match self.files {
            Files::Gguf(_) => Format::Gguf,
            Files::Safetensors(_) => Format::Safetensors,
        }
    }

    /// The GGUF file, whose metadata holds the tokenizer.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.files {
            Files::Gguf(gguf) => Some(gguf),
            Files::Safetensors(_) => None,
        }
    }

    /// The directory of a Hugging Face checkpoint, where its tokenizer lies.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Every tensor of the files.
    pub fn tensors(&self) -> Box<dyn Iterator<Item = TensorView<'_>> + '_> {
        self.files.tensors()
    }
}

impl Files {
    fn name_of(&self, arch: &Arch, role: Role) -> String {
        match self {
            Self::Gguf(_) => arch::gguf_name(role),
            Self::Safetensors(_) => arch::hf_name(arch, role),
        }
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        match self {
            Self::Gguf(gguf) => gguf.tensor(name),
            Self::Safetensors(safetensors) => safetensors.tensor(name),
        }
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = TensorView<'_>> + '_> {
        match self {
            Self::Gguf(gguf) => Box::new(gguf.tensors().iter().map(|tensor| gguf.view(tensor))),
            Self::Safetensors(safetensors) => Box::new(safetensors.tensors()),
        }
    }
}

/// Finds the tensor of each slot, checks its shape, and refuses tensors that belong to none: a
/// model with parts that are not computed would answer, but wrongly.
fn resolve(
    files: &Files,
    slots: Vec<Slot>,
    arch: &'static Arch,
    tied: Option<bool>,
) -> Result<HashMap<Role, String>, ModelError> {
    let known: HashSet<String> = slots.iter().map(|slot| files.name_of(arch, slot.role)).collect();
    let unexpected =
        |view: &TensorView<'_>| !known.contains(view.name) && !arch::is_ignored(view.name);
    if let Some(view) = files.tensors().find(unexpected) {
        return Err(ModelError::UnexpectedTensor { name: view.name.to_owned(), arch: arch.name });
    }
    let mut names = HashMap::with_capacity(slots.len());
    for slot in slots {
        let presence = match (slot.role, tied) {
            // A head beside a tied embedding is a copy of it.
            (Role::Output, Some(true)) => Presence::Absent,
            (Role::Output, Some(false)) => Presence::Required,
            _ => slot.presence,
        };
        let name = files.name_of(arch, slot.role);
        match (files.tensor(&name), presence) {
            (_, Presence::Absent) | (None, Presence::Optional) => {}
            (None, Presence::Required) => return Err(ModelError::MissingTensor(name)),
            (Some(view), _) => {
                check_shape(&view, &slot)?;
                names.insert(slot.role, name);
            }
        }
    }
    Ok(names)
}

fn check_shape(view: &TensorView<'_>, slot: &Slot) -> Result<(), ModelError> {
    if (view.rows, view.cols) == (slot.rows, slot.cols) {
        return Ok(());
    }
    Err(ModelError::WrongShape {
        name: view.name.to_owned(),
        found_rows: view.rows,
        found_cols: view.cols,
        rows: slot.rows,
        cols: slot.cols,
    })
}

fn file_names(paths: &[PathBuf]) -> Vec<String> {
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut names: Vec<String> = paths.iter().filter_map(name).collect();
    names.sort();
    names
}
