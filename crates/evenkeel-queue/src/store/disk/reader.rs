//! The threads that read.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use parking_lot::{Mutex, RwLock};

use super::layout;
use super::opened::{Opened, io};
use crate::id::{KeyId, QueueId, Seq};
use crate::message::{Header, Payload};
use crate::store::{Done, Fetch, StoreError};

/// What a reader is asked.
pub(super) enum Look {
    Fetch(Fetch, Done<Vec<(Header, Payload)>>),
    Read(QueueId, Vec<(KeyId, Header)>, Done<Vec<(Seq, Payload)>>),
}

/// Reads until nobody can ask any more.
pub(super) fn run(looks: &Mutex<Receiver<Look>>, opened: &RwLock<Option<Opened>>) {
    loop {
        let Ok(look) = looks.lock().recv() else { return };
        // Cloned, so that the writer does not wait for the disk.
        let folder = opened.read().clone();
        match (look, folder) {
            (Look::Fetch(fetch, done), Some(folder)) => done(fetch_from(&folder, fetch)),
            (Look::Read(queue, which, done), Some(folder)) => done(read_from(&folder, queue, which)),
            (Look::Fetch(_, done), None) => done(Err(StoreError::Closed)),
            (Look::Read(_, _, done), None) => done(Err(StoreError::Closed)),
        }
    }
}

fn fetch_from(folder: &Opened, fetch: Fetch) -> Result<Vec<(Header, Payload)>, StoreError> {
    let Fetch { queue, key, after, count_max, bytes_max } = fetch;
    let from = layout::place(queue, key, Seq(after.0.saturating_add(1)));
    let to = layout::lane(queue, KeyId(key.0.saturating_add(1)));
    let mut found: Vec<(Header, Payload)> = Vec::new();
    let (mut bytes, mut is_old) = (0, true);
    for keyspace in folder.shelves.after(after) {
        let range = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
        for entry in keyspace.range::<&[u8], _>(range) {
            // What outlived its generation lies between the others', so it does not use up their room.
            if !is_old && (count_max <= found.len() || bytes_max <= bytes) {
                break;
            }
            let (place, value) = entry.into_inner().map_err(io)?;
            let Some((_, _, header)) = layout::read_message_key(&place) else { continue };
            let Some(payload) = layout::read_message_value(&value.into()) else { continue };
            bytes += payload.size();
            found.push((header, payload));
        }
        is_old = false;
    }
    found.sort_by_key(|(header, _)| header.seq);
    found.truncate(count_max);
    Ok(found)
}

fn read_from(
    folder: &Opened,
    queue: QueueId,
    which: Vec<(KeyId, Header)>,
) -> Result<Vec<(Seq, Payload)>, StoreError> {
    let mut found = Vec::with_capacity(which.len());
    for (key, header) in which {
        let place = layout::message_key(queue, key, &header);
        let value = folder.shelves.of(header.seq).keyspace.get(place.as_slice()).map_err(io)?;
        found.extend(value.and_then(|value| Some((header.seq, layout::read_message_value(&value.into())?))));
    }
    Ok(found)
}

/// Where requests to read wait.
pub(super) type Looks = Arc<Mutex<Receiver<Look>>>;
