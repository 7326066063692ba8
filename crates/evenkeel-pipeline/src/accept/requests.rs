//! Table of live requests, by an id that is never reused.
//!
//! Limits: as many slots as the highest number of requests live at once; lookup is O(1).

use evenkeel_policy::id::RequestId;

use super::RequestRecord;

/// A generational arena: a late call with the id of an ended request finds no record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
struct RequestSlot {
    generation: u32,
    record: Option<RequestRecord>,
}

impl Requests {
    pub(crate) fn insert(&mut self, record: RequestRecord) -> RequestId {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.record = Some(record);
            return id(index, slot.generation);
        }
        // Limits on waiting and in-flight requests keep the index far below `u32::MAX`.
        let index = self.slots.len() as u32;
        self.slots.push(RequestSlot { generation: 0, record: Some(record) });
        id(index, 0)
    }

    pub(crate) fn remove(&mut self, request: RequestId) -> Option<RequestRecord> {
        let index = index(request);
        let slot =
            self.slots.get_mut(index as usize).filter(|slot| slot.generation == generation(request))?;
        let record = slot.record.take()?;
        // A slot whose generations are used up stays empty for good.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(index);
        }
        Some(record)
    }

    pub(crate) fn get(&self, request: RequestId) -> Option<&RequestRecord> {
        let slot = self.slots.get(index(request) as usize)?;
        slot.record.as_ref().filter(|_| slot.generation == generation(request))
    }

    pub(crate) fn get_mut(&mut self, request: RequestId) -> Option<&mut RequestRecord> {
        let slot = self.slots.get_mut(index(request) as usize)?;
        let is_current = slot.generation == generation(request);
        slot.record.as_mut().filter(|_| is_current)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestId, &RequestRecord)> {
        let numbered = (0..).zip(&self.slots);
        numbered.filter_map(|(index, slot)| Some((id(index, slot.generation), slot.record.as_ref()?)))
    }
}

fn id(index: u32, generation: u32) -> RequestId {
    RequestId(u64::from(generation) << 32 | u64::from(index))
}

fn index(request: RequestId) -> u32 {
    request.0 as u32
}

fn generation(request: RequestId) -> u32 {
    (request.0 >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::{Arrival, OutageRule, Priority, RequestState, TenantFlow};
    use evenkeel_policy::cost::Cost;
    use evenkeel_policy::id::{ModelId, TenantId};
    use evenkeel_policy::score::RequestKind;
    use evenkeel_policy::time::{Duration, Instant};

    #[test]
    fn a_slot_is_reused_under_another_id() {
        let mut requests = Requests::default();
        let first = requests.insert(record(1));
        assert!(requests.remove(first).is_some() && requests.remove(first).is_none());
        let second = requests.insert(record(2));
        assert!(first != second && requests.slots.len() == 1);
        assert!(requests.get(first).is_none() && requests.get_mut(first).is_none());
        assert_eq!(requests.iter().map(|(id, record)| (id, record.order)).collect::<Vec<_>>(), [(second, 2)]);
    }

    #[test]
    fn a_slot_whose_ids_are_used_up_is_not_reused() {
        let mut requests = Requests::default();
        requests.insert(record(1));
        requests.slots[0].generation = u32::MAX;
        assert!(requests.remove(id(0, u32::MAX)).is_some());
        assert_eq!(requests.insert(record(2)), id(1, 0));
    }

    fn record(order: u64) -> RequestRecord {
        let arrival = Arrival {
            tenant: TenantId(0),
            model: ModelId(0),
            cost: Cost(1),
            upfront: Cost(1),
            affinity: None,
            deadline: None,
            request: RequestKind::Infer,
            priority: Priority::Interactive,
            flow: TenantFlow::default(),
            outage: OutageRule::Hold,
        };
        RequestRecord {
            arrival,
            flow: None,
            order,
            deadline_at: None,
            waiting_since: Instant::ORIGIN,
            waited_before: Duration::ZERO,
            timeout_at: Instant::ORIGIN,
            attempts: 0,
            unserved: 0,
            refused: 0,
            tried: vec![],
            holds: vec![],
            skipped: 0,
            state: RequestState::Queued,
        }
    }
}
