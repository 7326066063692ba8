//! Every living request under an id that is never given twice.
//!
//! Bound: as many places as requests ever lived at once; finding one is O(1).

use super::{RequestId, RequestRecord};

/// Places with a generation each, so that a late word about an ended request finds nobody.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    places: Vec<RequestSlot>,
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
struct RequestSlot {
    generation: u32,
    ticket: Option<RequestRecord>,
}

impl Requests {
    pub(crate) fn insert(&mut self, ticket: RequestRecord) -> RequestId {
        if let Some(at) = self.free.pop() {
            let place = &mut self.places[at as usize];
            place.ticket = Some(ticket);
            return id(at, place.generation);
        }
        // Limits on waiting and in-flight requests keep this far below the range.
        let at = self.places.len() as u32;
        self.places.push(RequestSlot { generation: 0, ticket: Some(ticket) });
        id(at, 0)
    }

    pub(crate) fn remove(&mut self, request: RequestId) -> Option<RequestRecord> {
        let at = index(request);
        let place =
            self.places.get_mut(at as usize).filter(|place| place.generation == generation(request))?;
        let ticket = place.ticket.take()?;
        // A place whose generations are used up is left empty for good.
        if let Some(next) = place.generation.checked_add(1) {
            place.generation = next;
            self.free.push(at);
        }
        Some(ticket)
    }

    pub(crate) fn get(&self, request: RequestId) -> Option<&RequestRecord> {
        let place = self.places.get(index(request) as usize)?;
        place.ticket.as_ref().filter(|_| place.generation == generation(request))
    }

    pub(crate) fn get_mut(&mut self, request: RequestId) -> Option<&mut RequestRecord> {
        let place = self.places.get_mut(index(request) as usize)?;
        let current = place.generation == generation(request);
        place.ticket.as_mut().filter(|_| current)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestId, &RequestRecord)> {
        let numbered = (0..).zip(&self.places);
        numbered.filter_map(|(at, place)| Some((id(at, place.generation), place.ticket.as_ref()?)))
    }
}

fn id(at: u32, generation: u32) -> RequestId {
    RequestId(u64::from(generation) << 32 | u64::from(at))
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
    use crate::accept::{Arrival, ModelId, Priority, RequestState};
    use evenkeel_policy::cost::Cost;
    use evenkeel_policy::id::TenantId;
    use evenkeel_policy::score::RequestKind;
    use evenkeel_policy::time::{Duration, Instant};

    #[test]
    fn a_place_is_used_again_under_another_id() {
        let mut requests = Requests::default();
        let first = requests.insert(ticket(1));
        assert!(requests.remove(first).is_some() && requests.remove(first).is_none());
        let second = requests.insert(ticket(2));
        assert!(first != second && requests.places.len() == 1);
        assert!(requests.get(first).is_none() && requests.get_mut(first).is_none());
        assert_eq!(requests.iter().map(|(id, it)| (id, it.order)).collect::<Vec<_>>(), [(second, 2)]);
    }

    #[test]
    fn a_place_whose_ids_are_used_up_is_left_alone() {
        let mut requests = Requests::default();
        requests.insert(ticket(1));
        requests.places[0].generation = u32::MAX;
        assert!(requests.remove(id(0, u32::MAX)).is_some());
        assert_eq!(requests.insert(ticket(2)), id(1, 0));
    }

    fn ticket(order: u64) -> RequestRecord {
        let arrival = Arrival {
            tenant: TenantId(0),
            model: ModelId(0),
            cost: Cost(1),
            upfront: Cost(1),
            affinity: None,
            deadline: None,
            request: RequestKind::Infer,
            urgency: Priority::Interactive,
        };
        RequestRecord {
            arrival,
            order,
            deadline_at: None,
            waiting_since: Instant::ORIGIN,
            waited_before: Duration::ZERO,
            timeout_at: Instant::ORIGIN,
            attempts: 0,
            refused: 0,
            tried: vec![],
            skipped: 0,
            stage: RequestState::Queued,
        }
    }
}
