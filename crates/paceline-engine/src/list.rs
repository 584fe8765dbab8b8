//! Doubly-linked lists over numbered items, with the links in one array.
//!
//! Taking, adding and removing anywhere are O(1) and allocate nothing. An item is in at most one
//! of the lists that share a [`Links`].

const END: u32 = u32::MAX;
/// `prev` of an item that is in no list.
const DETACHED: u32 = u32::MAX - 1;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

/// The links of all items.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: Vec<Link>,
}

impl Links {
    pub(crate) fn new(n_items: u32) -> Self {
        let mut links = Self::default();
        links.grow(n_items);
        links
    }

    /// Makes room for items below `n_items`.
    pub(crate) fn grow(&mut self, n_items: u32) {
        let len = self.links.len().max(n_items as usize);
        self.links.resize(len, Link { prev: DETACHED, next: DETACHED });
    }

    pub(crate) fn contains(&self, item: u32) -> bool {
        self.links.get(item as usize).is_some_and(|link| link.prev != DETACHED)
    }
}

/// One list: its ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { head: END, tail: END, len: 0 }
    }
}

impl List {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != END).then_some(self.head)
    }

    pub(crate) fn push_back(&mut self, links: &mut Links, item: u32) {
        debug_assert!(!links.contains(item), "item {item} is already in a list");
        links.links[item as usize] = Link { prev: self.tail, next: END };
        match self.tail {
            END => self.head = item,
            tail => links.links[tail as usize].next = item,
        }
        self.tail = item;
        self.len += 1;
    }

    pub(crate) fn push_front(&mut self, links: &mut Links, item: u32) {
        debug_assert!(!links.contains(item), "item {item} is already in a list");
        links.links[item as usize] = Link { prev: END, next: self.head };
        match self.head {
            END => self.tail = item,
            head => links.links[head as usize].prev = item,
        }
        self.head = item;
        self.len += 1;
    }

    /// The item must be in this list.
    pub(crate) fn remove(&mut self, links: &mut Links, item: u32) {
        debug_assert!(links.contains(item), "item {item} is in no list");
        let Link { prev, next } = links.links[item as usize];
        match prev {
            END => self.head = next,
            prev => links.links[prev as usize].next = next,
        }
        match next {
            END => self.tail = prev,
            next => links.links[next as usize].prev = prev,
        }
        links.links[item as usize] = Link { prev: DETACHED, next: DETACHED };
        self.len -= 1;
    }

    pub(crate) fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = u32> + use<'a> {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let item = (at != END).then_some(at)?;
            at = links.links[item as usize].next;
            Some(item)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn behaves_like_a_deque() {
        let mut links = Links::new(8);
        let mut list = List::default();
        let mut model: VecDeque<u32> = VecDeque::new();
        let mut state = 1u64;
        for _ in 0..2_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let item = (state >> 40) as u32 % 8;
            if links.contains(item) {
                list.remove(&mut links, item);
                model.retain(|&other| other != item);
            } else if state >> 63 == 0 {
                list.push_back(&mut links, item);
                model.push_back(item);
            } else {
                list.push_front(&mut links, item);
                model.push_front(item);
            }
            assert!(list.iter(&links).eq(model.iter().copied()));
            assert_eq!(list.len() as usize, model.len());
            assert_eq!(list.front(), model.front().copied());
        }
    }
}
