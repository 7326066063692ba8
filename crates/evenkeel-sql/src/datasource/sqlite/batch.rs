//! Rows on their way from a SQLite thread to the connection's task.
//!
//! A batch owns its cells. It is sent once it has [`ROWS_MAX`] rows or [`BYTES_MAX`] bytes, so a result of a few
//! hundred small rows is one batch.

use std::ops::Range;

use rusqlite::types::ValueRef;

use crate::datasource::{Cell, Column};

/// Rows after which a batch is sent.
pub(super) const ROWS_MAX: usize = 256;
/// Bytes of text and blobs after which a batch is sent; one row may exceed it.
pub(super) const BYTES_MAX: usize = 64 << 10;

/// Consecutive rows of a result.
#[derive(Debug, Default)]
pub(super) struct RowBatch {
    /// The columns of the result, in its first batch.
    pub(super) columns: Option<Vec<Column>>,
    width: usize,
    cells: Vec<StoredCell>,
    text: String,
    blobs: Vec<u8>,
}

#[derive(Debug)]
enum StoredCell {
    Null,
    Integer(i64),
    Real(f64),
    Text(Range<usize>),
    Blob(Range<usize>),
}

impl RowBatch {
    pub(super) fn set_columns(&mut self, columns: Vec<Column>) {
        self.width = columns.len();
        self.columns = Some(columns);
    }

    /// Returns the number of cells per row; zero until the columns are known.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Appends one cell; a row is complete after one cell per column.
    ///
    /// Text that is not valid UTF-8 becomes a blob.
    pub(super) fn push(&mut self, value: ValueRef<'_>) {
        let cell = match value {
            ValueRef::Null => StoredCell::Null,
            ValueRef::Integer(integer) => StoredCell::Integer(integer),
            ValueRef::Real(real) => StoredCell::Real(real),
            ValueRef::Text(bytes) => match str::from_utf8(bytes) {
                Ok(text) => self.push_text(text),
                Err(_) => self.push_blob(bytes),
            },
            ValueRef::Blob(bytes) => self.push_blob(bytes),
        };
        self.cells.push(cell);
    }

    fn push_text(&mut self, text: &str) -> StoredCell {
        let start = self.text.len();
        self.text.push_str(text);
        StoredCell::Text(start..self.text.len())
    }

    fn push_blob(&mut self, bytes: &[u8]) -> StoredCell {
        let start = self.blobs.len();
        self.blobs.extend_from_slice(bytes);
        StoredCell::Blob(start..self.blobs.len())
    }

    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.blobs.len()
    }

    pub(super) fn is_full(&self) -> bool {
        ROWS_MAX * self.width <= self.cells.len() || BYTES_MAX <= self.bytes()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.columns.is_none() && self.cells.is_empty()
    }

    pub(super) fn has_rows(&self) -> bool {
        !self.cells.is_empty()
    }

    /// Empties the batch and returns its contents; the next batch has the same columns but does not repeat them.
    pub(super) fn take(&mut self) -> Self {
        let next = Self { width: self.width, ..Self::default() };
        core::mem::replace(self, next)
    }

    /// Iterates over the rows, each an iterator over its cells.
    pub(super) fn rows(&self) -> impl Iterator<Item = impl Iterator<Item = Cell<'_>>> {
        self.cells.chunks(self.width.max(1)).map(|row| row.iter().map(|cell| self.cell(cell)))
    }

    fn cell(&self, cell: &StoredCell) -> Cell<'_> {
        match cell {
            StoredCell::Null => Cell::Null,
            StoredCell::Integer(integer) => Cell::Integer(*integer),
            StoredCell::Real(real) => Cell::Real(*real),
            StoredCell::Text(range) => Cell::Text(&self.text[range.clone()]),
            StoredCell::Blob(range) => Cell::Blob(&self.blobs[range.clone()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::datasource::ColumnOrigin;

    fn batch(width: usize) -> RowBatch {
        let column =
            Column { name: "c".to_owned(), type_name: Cow::Borrowed(""), origin: ColumnOrigin::default() };
        let mut batch = RowBatch::default();
        batch.set_columns(vec![column; width]);
        batch
    }

    #[test]
    fn cells_come_back_row_by_row() {
        let mut batch = batch(2);
        let values = [
            ValueRef::Text("é".as_bytes()),
            ValueRef::Blob(b"\0\xff"),
            ValueRef::Text(b"\xff"),
            ValueRef::Text(b""),
            ValueRef::Null,
            ValueRef::Integer(i64::MIN),
        ];
        values.into_iter().for_each(|value| batch.push(value));
        let rows: Vec<Vec<Cell<'_>>> = batch.rows().map(Iterator::collect).collect();
        assert_eq!(
            rows,
            [
                [Cell::Text("é"), Cell::Blob(b"\0\xff")],
                [Cell::Blob(b"\xff"), Cell::Text("")],
                [Cell::Null, Cell::Integer(i64::MIN)],
            ]
        );
    }

    #[test]
    fn a_batch_is_full_after_its_rows_or_bytes() {
        let mut rows = batch(2);
        for _ in 0..ROWS_MAX * 2 {
            assert!(!rows.is_full());
            rows.push(ValueRef::Null);
        }
        assert!(rows.is_full());

        let mut bytes = batch(1);
        bytes.push(ValueRef::Blob(&vec![0; BYTES_MAX - 1]));
        assert!(!bytes.is_full());
        bytes.push(ValueRef::Text(b"x"));
        assert!(bytes.is_full());
    }

    #[test]
    fn taking_a_batch_leaves_an_empty_one_of_the_same_width() {
        let mut first = batch(2);
        first.push(ValueRef::Integer(1));
        first.push(ValueRef::Integer(2));
        assert_eq!(first.take().rows().count(), 1);
        assert!(first.is_empty());
        first.push(ValueRef::Integer(3));
        first.push(ValueRef::Integer(4));
        assert_eq!(first.rows().count(), 1);
    }
}
