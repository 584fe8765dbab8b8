//! Records kept under a permanent small number for as long as they live.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// Where a record of type `T` lives in its slab.
pub(crate) struct Slot<T> {
    pub(crate) index: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Slot<T> {
    pub(crate) fn new(index: u32) -> Self {
        Self { index, of: PhantomData }
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slot<T> {}

impl<T> PartialEq for Slot<T> {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

impl<T> std::fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{}", self.index)
    }
}

/// A slab. Slots are reused after removal.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    records: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { records: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, record: T) -> Slot<T> {
        if let Some(index) = self.free.pop() {
            self.records[index as usize] = Some(record);
            return Slot::new(index);
        }
        let index = u32::try_from(self.records.len()).expect("fewer than 2^32 live records");
        self.records.push(Some(record));
        Slot::new(index)
    }

    pub(crate) fn remove(&mut self, slot: Slot<T>) -> Option<T> {
        let record = self.records.get_mut(slot.index as usize)?.take()?;
        self.free.push(slot.index);
        Some(record)
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot<T>, &T)> {
        let numbered = self.records.iter().enumerate();
        numbered.filter_map(|(index, record)| Some((Slot::new(index as u32), record.as_ref()?)))
    }
}

impl<T> Index<Slot<T>> for Slab<T> {
    type Output = T;

    fn index(&self, slot: Slot<T>) -> &T {
        self.records[slot.index as usize].as_ref().expect("slots are dropped with their record")
    }
}

impl<T> IndexMut<Slot<T>> for Slab<T> {
    fn index_mut(&mut self, slot: Slot<T>) -> &mut T {
        self.records[slot.index as usize].as_mut().expect("slots are dropped with their record")
    }
}
