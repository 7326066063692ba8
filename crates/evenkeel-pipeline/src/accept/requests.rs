//! Every living request under an id that is never given twice.
//!
//! Bound: as many places as requests ever lived at once; finding one is O(1).

use super::{RequestId, Ticket};

/// Places with a generation each, so that a late word about an ended request finds nobody.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Place {
    generation: u32,
    ticket: Option<Ticket>,
}

impl Requests {
    pub(crate) fn insert(&mut self, ticket: Ticket) -> RequestId {
        if let Some(at) = self.free.pop() {
            let place = &mut self.places[at as usize];
            place.ticket = Some(ticket);
            return id(at, place.generation);
        }
        // Limits on waiting and in-flight requests keep this far below the range.
        let at = self.places.len() as u32;
        self.places.push(Place { generation: 0, ticket: Some(ticket) });
        id(at, 0)
    }

    pub(crate) fn remove(&mut self, request: RequestId) -> Option<Ticket> {
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

    pub(crate) fn get(&self, request: RequestId) -> Option<&Ticket> {
        let place = self.places.get(index(request) as usize)?;
        place.ticket.as_ref().filter(|_| place.generation == generation(request))
    }

    pub(crate) fn get_mut(&mut self, request: RequestId) -> Option<&mut Ticket> {
        let place = self.places.get_mut(index(request) as usize)?;
        let current = place.generation == generation(request);
        place.ticket.as_mut().filter(|_| current)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestId, &Ticket)> {
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
