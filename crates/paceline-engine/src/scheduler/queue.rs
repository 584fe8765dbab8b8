//! Sequences that wait, by priority class.

use crate::list::{Links, List};
use crate::request::Priority;
use crate::sequence::SeqSlot;
use crate::slab::Slot;

const N_CLASSES: usize = 4;

/// One list per class, first come first served. What is preempted returns to the front.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    links: Links,
    classes: [List; N_CLASSES],
    n_new: u32,
    n_new_tokens: u64,
}

impl WaitQueue {
    /// Everything that waits.
    pub(super) fn len(&self) -> u32 {
        self.classes.iter().map(List::len).sum()
    }

    /// Requests that have never run.
    pub(super) fn n_new(&self) -> u32 {
        self.n_new
    }

    /// Prompt tokens of the requests that have never run.
    pub(super) fn n_new_tokens(&self) -> u64 {
        self.n_new_tokens
    }

    pub(super) fn push_new(&mut self, slot: SeqSlot, priority: Priority, n_prompt: usize) {
        self.links.grow(slot.index + 1);
        self.classes[priority as usize].push_back(&mut self.links, slot.index);
        self.n_new += 1;
        self.n_new_tokens += n_prompt as u64;
    }

    pub(super) fn push_preempted(&mut self, slot: SeqSlot, priority: Priority) {
        self.links.grow(slot.index + 1);
        self.classes[priority as usize].push_front(&mut self.links, slot.index);
    }

    /// `n_new_tokens` is the prompt's length if the sequence has never run.
    pub(super) fn remove(
        &mut self,
        slot: SeqSlot,
        priority: Priority,
        n_new_tokens: Option<usize>,
    ) {
        self.classes[priority as usize].remove(&mut self.links, slot.index);
        if let Some(n_tokens) = n_new_tokens {
            self.n_new -= 1;
            self.n_new_tokens -= n_tokens as u64;
        }
    }

    pub(super) fn contains(&self, slot: SeqSlot) -> bool {
        self.links.contains(slot.index)
    }

    /// The first of each class, highest class first.
    pub(super) fn fronts(&self) -> impl Iterator<Item = SeqSlot> {
        self.classes.iter().filter_map(List::front).map(Slot::new)
    }

    /// All, in the order they are served.
    pub(super) fn iter(&self) -> impl Iterator<Item = SeqSlot> {
        self.classes.iter().flat_map(|class| class.iter(&self.links)).map(Slot::new)
    }
}
