//! Sequences that wait: by priority class, and inside a class by tenant.
//!
//! The tenant that has had the fewest rows computed is served next, so that one that floods the
//! queue waits for itself and not for the others. A tenant counts from where the least served one
//! is when it comes: being away earns nothing, and costs nothing. With one tenant this is first
//! come, first served. What was preempted goes before all that is new in its class.

use std::collections::HashMap;

use crate::list::{Links, List};
use crate::request::Priority;
use crate::sequence::SeqSlot;
use crate::slab::{Slab, Slot};

const N_CLASSES: usize = 4;

pub(crate) type LaneSlot = Slot<Lane>;

/// What a lane has had: rows, then requests under way; tenants' numbers decide ties. Says something
/// only beside another of the same class.
pub(super) type Served = (u64, u32, u64);

/// One tenant's place in one class; lives as long as it has unfinished requests there.
#[derive(Debug)]
pub(crate) struct Lane {
    priority: Priority,
    tenant: u64,
    /// Its requests that have never run.
    waiting: List,
    n_requests: u32,
    /// Rows computed for it, counted from where the least served lane was when it came.
    n_rows: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct WaitQueue {
    links: Links,
    lanes: Slab<Lane>,
    by_tenant: HashMap<(Priority, u64), LaneSlot>,
    preempted: [List; N_CLASSES],
    n_waiting: u32,
    n_new: u32,
    n_new_tokens: u64,
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self {
            links: Links::default(),
            lanes: Slab::new(),
            by_tenant: HashMap::new(),
            preempted: [List::default(); N_CLASSES],
            n_waiting: 0,
            n_new: 0,
            n_new_tokens: 0,
        }
    }
}

impl Lane {
    fn served(&self) -> Served {
        (self.n_rows, self.n_requests, self.tenant)
    }
}

impl WaitQueue {
    /// Everything that waits.
    pub(super) fn len(&self) -> u32 {
        self.n_waiting
    }

    /// Requests that have never run.
    pub(super) fn n_new(&self) -> u32 {
        self.n_new
    }

    /// Everything that waits in another class than the batch class.
    pub(super) fn n_above_batch(&self) -> u32 {
        let n_new: u32 = self.lanes_above_batch().map(|lane| lane.waiting.len()).sum();
        let preempted = &self.preempted[..Priority::Batch as usize];
        n_new + preempted.iter().map(List::len).sum::<u32>()
    }

    /// Prompt tokens of the requests that have never run.
    pub(super) fn n_new_tokens(&self) -> u64 {
        self.n_new_tokens
    }

    /// A request's lane; every `join` has its `leave`.
    pub(super) fn join(&mut self, priority: Priority, tenant: u64) -> LaneSlot {
        let lane = match self.by_tenant.get(&(priority, tenant)) {
            Some(&lane) => lane,
            None => self.add_lane(priority, tenant),
        };
        self.lanes[lane].n_requests += 1;
        lane
    }

    fn add_lane(&mut self, priority: Priority, tenant: u64) -> LaneSlot {
        let lanes = self.lanes.iter().filter(|(_, lane)| lane.priority == priority);
        let n_rows = lanes.map(|(_, lane)| lane.n_rows).min().unwrap_or(0);
        let waiting = List::default();
        let lane = self.lanes.insert(Lane { priority, tenant, waiting, n_requests: 0, n_rows });
        self.by_tenant.insert((priority, tenant), lane);
        lane
    }

    /// A request has ended.
    pub(super) fn leave(&mut self, slot: LaneSlot) {
        let lane = &mut self.lanes[slot];
        lane.n_requests -= 1;
        if lane.n_requests == 0 {
            self.by_tenant.remove(&(lane.priority, lane.tenant));
            self.lanes.remove(slot);
        }
    }

    /// Notes that rows were computed for a lane.
    pub(super) fn charge(&mut self, lane: LaneSlot, n_rows: usize) {
        self.lanes[lane].n_rows += n_rows as u64;
    }

    pub(super) fn served(&self, lane: LaneSlot) -> Served {
        self.lanes[lane].served()
    }

    /// Whether several tenants have requests here, those of the batch class aside: they fill what
    /// is left.
    pub(super) fn has_many_tenants(&self) -> bool {
        let mut tenants = self.lanes_above_batch().map(|lane| lane.tenant);
        tenants.next().is_some_and(|first| tenants.any(|tenant| tenant != first))
    }

    /// Whether another tenant has had more than this one, or comes after it by its class.
    pub(super) fn is_behind_any(&self, lane: LaneSlot) -> bool {
        let mut others = self.lanes.iter().filter(|(_, other)| other.priority != Priority::Batch);
        others.any(|(other, _)| self.is_behind(lane, other))
    }

    /// Whether the second is another tenant's, and has had more or comes after by its class. Where
    /// both have had as much, the one with fewer requests is behind.
    pub(super) fn is_behind(&self, lane: LaneSlot, other: LaneSlot) -> bool {
        let (lane, other) = (&self.lanes[lane], &self.lanes[other]);
        let rank = |lane: &Lane| (lane.priority, lane.n_rows, lane.n_requests);
        lane.tenant != other.tenant && rank(lane) < rank(other)
    }

    fn lanes_above_batch(&self) -> impl Iterator<Item = &Lane> {
        let lanes = self.lanes.iter().map(|(_, lane)| lane);
        lanes.filter(|lane| lane.priority != Priority::Batch)
    }

    pub(super) fn push_new(&mut self, slot: SeqSlot, lane: LaneSlot, n_prompt: usize) {
        self.links.grow(slot.index + 1);
        self.lanes[lane].waiting.push_back(&mut self.links, slot.index);
        self.n_waiting += 1;
        self.n_new += 1;
        self.n_new_tokens += n_prompt as u64;
    }

    pub(super) fn push_preempted(&mut self, slot: SeqSlot, priority: Priority) {
        self.links.grow(slot.index + 1);
        self.preempted[priority as usize].push_front(&mut self.links, slot.index);
        self.n_waiting += 1;
    }

    /// `n_new_tokens` is the prompt's length if the sequence has never run.
    pub(super) fn remove(&mut self, slot: SeqSlot, lane: LaneSlot, n_new_tokens: Option<usize>) {
        self.n_waiting -= 1;
        let lane = &mut self.lanes[lane];
        let Some(n_tokens) = n_new_tokens else {
            self.preempted[lane.priority as usize].remove(&mut self.links, slot.index);
            return;
        };
        lane.waiting.remove(&mut self.links, slot.index);
        self.n_new -= 1;
        self.n_new_tokens -= n_tokens as u64;
    }

    pub(super) fn contains(&self, slot: SeqSlot) -> bool {
        self.links.contains(slot.index)
    }

    /// The next to be served, of those that may be: of the highest class what was preempted, then
    /// the first of the least served lane. Nobody overtakes inside a lane.
    pub(super) fn next(&self, is_open: impl Fn(SeqSlot) -> bool) -> Option<SeqSlot> {
        let open = |list: &List| list.front().map(Slot::new).filter(|&slot| is_open(slot));
        (0..N_CLASSES).find_map(|class| {
            let of_class = self.lanes.iter().filter(|(_, lane)| lane.priority as usize == class);
            let fronts = of_class.filter_map(|(_, lane)| Some((lane, open(&lane.waiting)?)));
            let least = fronts.min_by_key(|(lane, _)| lane.served());
            open(&self.preempted[class]).or(least.map(|(_, slot)| slot))
        })
    }

    /// The first of each list; the oldest of what waits is among them.
    pub(super) fn fronts(&self) -> impl Iterator<Item = SeqSlot> {
        self.lists().filter_map(List::front).map(Slot::new)
    }

    /// All, in no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = SeqSlot> {
        self.lists().flat_map(|list| list.iter(&self.links)).map(Slot::new)
    }

    fn lists(&self) -> impl Iterator<Item = &List> {
        self.preempted.iter().chain(self.lanes.iter().map(|(_, lane)| &lane.waiting))
    }

    /// What is wrong with the lanes' books, given how many requests there are.
    pub(super) fn check(&self, n_requests: usize) -> Result<(), String> {
        let n_joined: u32 = self.lanes.iter().map(|(_, lane)| lane.n_requests).sum();
        if n_joined as usize != n_requests || self.lanes.len() != self.by_tenant.len() {
            return Err(format!("{n_joined} requests in {} lanes", self.lanes.len()));
        }
        let n_listed: u32 = self.lists().map(List::len).sum();
        match n_listed == self.n_waiting {
            true => Ok(()),
            false => Err(format!("{n_listed} wait, {} are counted", self.n_waiting)),
        }
    }
}
